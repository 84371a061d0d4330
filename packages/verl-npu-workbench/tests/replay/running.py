"""Proves the operators and the device on virtual NPUs, for comparison with a bundle."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from verl_npu_workbench.prove import bundle
from verl_npu_workbench.prove.bundle import Proof

OURS = {"VIRTUAL_ASCEND_TORCH_NPU": "ours", "VIRTUAL_ASCEND_TORCH_NPU_VERSION": "2.13.0"}
STAGES = ("device", "operators", "attention")
WORKBENCH = Path(__file__).resolve().parents[2]


def wheel(folder: Path) -> dict[str, str]:
    """Return the variables of a process that uses the torch_npu wheel in a folder."""
    return {"VIRTUAL_ASCEND_TORCH_NPU": "real", "PYTHONPATH": str(folder.resolve())}


def made(folder: Path, variables: Mapping[str, str], stages: Sequence[str] = STAGES) -> Proof:
    """Make a proof on one virtual NPU. Raises RuntimeError if the command fails."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VIRTUAL_ASCEND")}
    paths = [variables.get("PYTHONPATH", ""), str(WORKBENCH), os.environ.get("PYTHONPATH", "")]
    environment = {
        **kept,
        "VIRTUAL_ASCEND": "1",
        **variables,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    chosen = [word for stage in stages for word in ("--stage", stage)]
    done = subprocess.run(
        [sys.executable, "-m", "verl_npu", "prove", "--minutes", "30", "--output", str(folder / "proof"), *chosen],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    found = sorted((folder / "proof").glob("proof-*.zip"))
    if done.returncode not in (0, 1) or not found:
        raise RuntimeError(f"the proof ended with status {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return bundle.read(found[0])
