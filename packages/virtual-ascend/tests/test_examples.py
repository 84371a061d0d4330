"""The example of the README: TRL, which does not know that NPUs are virtual, trains on two of them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from virtual_ascend.testing import environment

PROGRAM = Path(__file__).parents[1] / "examples/train_with_trl.py"


@pytest.mark.nightly("packages/virtual-ascend")
def test_trl_trains_on_two_npus_and_the_loss_falls(tmp_path: Path) -> None:
    for name in ("trl", "accelerate"):
        pytest.importorskip(name)
    command = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2", str(PROGRAM)]
    done = subprocess.run(
        command, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ends = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
    assert [line.partition(": ")[0] for line in ends] == ["rank 0 on npu:0", "rank 1 on npu:1"]
    for line in ends:
        losses = ast.literal_eval(line.partition("losses ")[2])
        assert losses[-1] < losses[0] / 2
