"""The two sides, each in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
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
