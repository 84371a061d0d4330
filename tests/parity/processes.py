"""The two sides, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def side(
    name: str,
    path: Path,
    folders: Sequence[Path] = (),
    module: str = "side",
    cases: Sequence[str] = (),
    **environment: str,
) -> None:
    """Run one side, with `folders` before everything else that is imported; of `cases` all where none is named.

    Raises RuntimeError where it fails.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("VERL_", "ASCEND_", "NPU_"))}
    paths = [*map(str, folders), str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    switches = {"VERL_NPU": "off"} if name == "cpu" else {"VIRTUAL_ASCEND": "2"}
    result = subprocess.run(
        [sys.executable, "-m", f"tests.parity.{module}", name, str(path), *cases],
        cwd=PROJECT,
        env={**inherited, **switches, **environment, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if result.returncode:
        raise RuntimeError(f"the side {name} failed:\n{result.stdout}\n{result.stderr}")
