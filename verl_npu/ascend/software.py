"""The import of torch_npu, and the error that explains why it fails."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

from ..errors import AscendSoftwareError
from .variables import AUTOLOAD, VIRTUAL_NPUS, virtual_npus

PATIENCE = 300.0  # seconds; an import from a cluster's file system may take minutes

_SET_ENV = (
    "/usr/local/Ascend/ascend-toolkit/set_env.sh",
    "/usr/local/Ascend/cann/ascend-toolkit/set_env.sh",
    "/usr/local/Ascend/cann/set_env.sh",
)
_IMPORT = """
import sys
sys.path[:1] = [entry for entry in sys.path[:1] if entry]
import importlib.util
if importlib.util.find_spec("torch_npu") is not None:
    import torch_npu
"""
"""A program that imports the installed torch_npu. It removes the current folder from Python's search path first, so
that a torch_npu there is not imported."""
_LIBRARY = re.compile(r"\blib[\w+-]+\.so\b")
_DRIVER_LIBRARIES = ("libascend_hal.so", "libdrvdsmi_host.so")


def import_torch_npu() -> None:
    """Import torch_npu, and restore the user's value of TORCH_DEVICE_BACKEND_AUTOLOAD afterwards.

    torch_npu sets the variable to 0 while it imports torch, and several versions leave it at 0. Processes started
    later, such as Ray's workers, would inherit the 0, and would load neither torch_npu nor verl-npu.

    Raises:
        AscendSoftwareError: torch_npu cannot be imported.
    """
    imported = "torch_npu" in sys.modules
    before = os.environ.get(AUTOLOAD)
    try:
        module = importlib.import_module("torch_npu")
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch_npu":
            raise absent() from error
        raise _explained(f"{type(error).__name__}: {error}") from error
    finally:
        _restore(before)
    # If the program imported torch_npu earlier, torch_npu has kept the value from before that.
    original = getattr(module, "ORG_AUTOLOAD", None)
    if imported and before == "0" and isinstance(original, str) and original != before:
        _restore(original)


def absent() -> AscendSoftwareError:
    """Return the error for an environment with neither torch_npu nor virtual NPUs."""
    return AscendSoftwareError(
        subject="torch_npu",
        found="the package torch_npu, which NPUs need, is not installed",
        fix=f"install torch_npu, or set {VIRTUAL_NPUS}=2 for two virtual NPUs",
    )


def problem() -> AscendSoftwareError | None:
    """Try to import the installed torch_npu in another process. Return the error if the import fails.

    Return None if the import works, if torch_npu is not installed, or if the user requested virtual NPUs.
    """
    if virtual_npus() or "torch_npu" in sys.modules:
        return None
    spec = importlib.util.find_spec("torch_npu")
    if spec is None or spec.origin is None:
        return None
    try:
        tried = subprocess.run(
            [sys.executable, "-c", _IMPORT],
            env={**os.environ, "VERL_NPU": "off"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _explained(f"the import did not end within {PATIENCE:g} s")
    if tried.returncode == 0:
        return None
    lines = [line.strip() for line in tried.stderr.splitlines() if line.strip()]
    return _explained(lines[-1] if lines else f"the import ended the process with status {tried.returncode}")


def _restore(value: str | None) -> None:
    if value is None:
        os.environ.pop(AUTOLOAD, None)
    else:
        os.environ[AUTOLOAD] = value


def _explained(found: str) -> AscendSoftwareError:
    found = " ".join(found.split()).rstrip(".")
    library = _LIBRARY.search(found)
    if library is None:
        fix = "run `python -c 'import torch_npu'` to see the whole error"
    elif library[0] in _DRIVER_LIBRARIES:
        fix = f"mount /usr/local/Ascend/driver into the container, because {library[0]} belongs to the NPU's driver"
    else:
        path = next((path for path in _SET_ENV if Path(path).is_file()), _SET_ENV[0])
        start = "in the shell that starts the job, and on each host before `ray start`"
        fix = f"run `source {path}` {start}, because {library[0]} belongs to CANN"
    return AscendSoftwareError(
        subject="torch_npu",
        found=f"the installed torch_npu cannot be imported: {found}",
        fix=fix,
        override="VERL_NPU=off",
    )
