"""verl trains on the wheel of torch_npu that belongs to these tests' torch."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest
from virtual_ascend.testing import environment

pytestmark = [pytest.mark.virtual, pytest.mark.e2e]

SMOKE = Path(__file__).parents[4] / "scripts" / "smoke.py"
STEPS = 2


@pytest.mark.nightly("verl_npu_workbench/simulation", "packages/virtual-ascend/virtual_ascend/real")
def test_supervised_training_under_the_wheel_moves_all_weights(
    settings: dict[str, str], version: str, tmp_path: Path
) -> None:
    if not any(one.version == "0.6.1" for one in importlib.metadata.distributions(name="verl")):
        pytest.skip("expected verl 0.6.1 here, as in the environment that scripts/test.sh makes")
    asked = ["--pin", "v0.6.1", "--job", "sft", "--steps", str(STEPS), "--torch-npu", version]
    done = subprocess.run(
        [sys.executable, str(SMOKE), "--no-venv", *asked, "--timeout", "400", "--output", str(tmp_path)],
        env=environment(**settings),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    # Smoke has compared the weights, and the features that each process applied.
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "smoke.json").read_text())
    assert (result["simulated"], result["steps"]) == (True, STEPS)
    (log,) = tmp_path.glob("sft-*/train.log")
    assert f"virtual NPUs under torch_npu {version}" in log.read_text()
