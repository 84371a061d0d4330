"""Brings up the installed torch_npu in one process, over the stub CANN and with the CPU computing its operators."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast

from .. import cann, choice, exposure, faults, imports, variables
from ..device import build, shutdown
from ..errors import RealAscendError, SettingError
from ..reporting import report
from ..settings import Settings
from . import stub

COMPUTE = build.Module("virtual_ascend_compute_C", Path(__file__).parent / "compute")
_QUEUE = "TASK_QUEUE_ENABLE"
_TORCH_NPU = "torch_npu"

_exposed = False
_stub: Path | None = None
_computed: tuple[list[str], list[str]] | None = None


class _Compute(Protocol):
    """The functions of the compiled module."""

    def install(
        self,
        cann: str,
        default_generator: Callable[[int], object],
        delayed_copies: bool,
        failing: Sequence[tuple[str, int, int]],
    ) -> tuple[list[str], list[str]]:
        """Make the CPU compute the operators.

        `default_generator` returns the generator of a device. `failing` are the operators that must fail, each with
        its call (0 for all) and rank (-1 for all). Return the operators that the CPU computes, and the operators for
        which we have no reference.
        """


def expose() -> None:
    """Prepare the import of the installed torch_npu, so that it finds a stub CANN and the CPU computes its
    operators."""
    global _exposed
    if _exposed:
        return
    exposure.expose_cann()
    _exposed = True
    imports.before(_TORCH_NPU, lambda _: _prepare())
    imports.after(_TORCH_NPU, _complete)


def load() -> None:
    """Start the installed torch_npu on virtual NPUs. Repeated calls do nothing.

    Raises:
        RealAscendError: this machine has a CANN.
        BuildError: the stub CANN or the compute module cannot be compiled.
    """
    expose()
    module = sys.modules.get(_TORCH_NPU)
    # torch's autoload imports torch_npu itself, and calls this in the middle of that import.
    if module is None:
        importlib.import_module(_TORCH_NPU)


def is_loaded() -> bool:
    """Return whether the installed torch_npu is running on virtual NPUs in this process."""
    return _computed is not None


def version() -> str:
    """Return the version of the installed torch_npu that is running in this process."""
    return str(sys.modules[_TORCH_NPU].__version__)


def computed() -> tuple[list[str], list[str]]:
    """Return the operators that the CPU computes, and the operators for which we have no reference."""
    return _computed or ([], [])


def _prepare() -> None:
    # This runs before torch_npu is executed, so that it finds the stub's libraries as CANN's.
    global _stub
    package = choice.wheel()
    if _stub is not None or package is None:
        return
    settings = Settings.read()
    _refuse_phantoms(settings)
    _refuse_cann()
    cann.install(settings.cache, os.environ, settings.cann_version, settings.driver_version)
    folder = stub.build_stub(package, settings.cache)
    stub.load(folder, settings)
    # With a task queue torch_npu would call CANN from another thread, after the CPU has computed.
    if os.environ.get(_QUEUE, "0") != "0":
        report(
            f"{_QUEUE}={os.environ[_QUEUE]} becomes 0 on virtual NPUs, because torch_npu must not run ahead of the CPU"
        )
    os.environ[_QUEUE] = "0"
    _stub = folder


def _complete(torch_npu: ModuleType) -> None:
    global _computed
    if _computed is not None or _stub is None:
        return
    import torch

    from . import references

    references.register()
    settings = Settings.read()
    compute = cast("_Compute", build.load(build.library(torch.__version__, settings.cache, COMPUTE)))
    _computed = compute.install(
        str(_stub / stub.CORE),
        lambda device: torch.npu.default_generators[device],
        settings.delayed_copies,
        faults.failing(settings.faults),
    )
    shutdown.install()
    torch_npu.__simulated__ = f"virtual NPUs under torch_npu {version()}"  # type: ignore[attr-defined]  # our own mark
    names = {name.removeprefix("npu::").partition(".")[0] for half in _computed for name in half}
    faults.check_operators(settings.faults, names, f"torch_npu {version()}")


def _refuse_phantoms(settings: Settings) -> None:
    if settings.phantom > 0:
        phantom = variables.PHANTOM
        raise SettingError(
            subject=f"{phantom.name}={phantom.text()}",
            expected="the virtual Ascend's own torch_npu, because the installed torch_npu cannot make phantom tensors",
            found="the installed torch_npu",
            fix=f"unset {phantom.name}, or set {variables.TORCH_NPU.name}=ours",
        )


def _refuse_cann() -> None:
    try:
        found = ctypes.CDLL("libascendcl.so")
    except OSError:
        return
    raise RealAscendError(
        subject="virtual NPUs with the installed torch_npu",
        expected="a process in which no library of CANN is loaded",
        found=f"CANN's {found._name}",
        fix="unset VIRTUAL_ASCEND to use the real NPUs, or start a shell in which CANN's set_env.sh is not sourced",
    )
