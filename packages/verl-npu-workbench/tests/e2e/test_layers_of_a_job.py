"""A job compares the layers of its trainer and its engine on every tenth step, on virtual NPUs: SIMULATED."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from .conftest import Smoke

HERE = Path(__file__).parent
STEPS = [1, 10, 20, 30, 40]


@pytest.mark.e2e
@pytest.mark.nightly("verl_npu_workbench/layers")
def test_a_stale_weight_is_named_at_its_step(smoke: Smoke, tmp_path: Path) -> None:
    """From step 20 on, the engine keeps an old weight."""
    settings = ["actor_rollout_ref.model.external_lib=stale_weight"]
    done = smoke(steps=STEPS[-1], settings=settings, VERL_NPU_COMPARE_LAYERS="10", PYTHONPATH=str(HERE))
    assert done.returncode == 0, done.stdout + done.stderr
    found = [said(tmp_path, step) for step in STEPS]
    assert [each["first"] for each in found[:2]] == [None, None]
    for each in found[2:]:
        assert (each["first"]["side"], each["first"]["operator"]) == ("engine", "layers.1.mlp.down_proj")
        assert each["cause"]["reason"] == "another weight"
    assert len(found[0]["sides"]["trainer"]["operators"]) == len(found[0]["sides"]["engine"]["operators"]) == 33
    log = next(tmp_path.glob("grpo-*/train.log")).read_text()
    costs = re.findall(r"layers of step (\d+): .* Compared in [\d.]+ s(?:, (\d+)% of a step)?", log)
    assert sorted(int(step) for step, _ in costs) == STEPS
    assert [step for step, share in costs if not share] == ["1"]
    print("the shares of a step:", costs)


def said(folder: Path, step: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(next(folder.glob(f"grpo-*/manifests/layers/step-{step}.json")).read_text())
    return found
