"""The two sides, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version as version_of
from pathlib import Path

from testing.interpreter import python

SIDE = "verl_npu_workbench.prove.parity.side"
WORKBENCH = Path(__file__).resolve().parents[2]


def side(
    name: str,
    path: Path,
    folders: Sequence[Path] = (),
    module: str = SIDE,
    cases: Sequence[str] = (),
    **environment: str,
) -> None:
    """Run one side, with `folders` before everything else that is imported; of `cases` all where none is named.

    Raises RuntimeError where it fails.
    """
    switches = {"VERL_NPU": "off"} if name == "cpu" else {"VIRTUAL_ASCEND": "2"}
    result = python(
        *("-m", module, name, str(path), *cases),
        paths=[*folders, WORKBENCH],
        clean=("VERL_", "ASCEND_", "NPU_"),
        cwd=WORKBENCH,
        **{**switches, **environment},
    )
    if result.returncode:
        raise RuntimeError(f"the side {name} failed:\n{result.stdout}\n{result.stderr}")


def install(version: str) -> Path:
    """Install another transformers into a folder below ~/.cache/verl-npu, once, and return the folder.

    Raises CalledProcessError where pip cannot.
    """
    folder = Path.home() / ".cache" / "verl-npu" / "transformers" / version
    if not (folder / "transformers" / "__init__.py").is_file():
        # The code for NPUs of older versions imports einops; torch was built for the installed numpy.
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
        command += [f"transformers=={version}", "einops", f"numpy=={version_of('numpy')}"]
        subprocess.run(command, check=True)
    return folder
