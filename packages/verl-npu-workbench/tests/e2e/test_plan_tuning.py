"""`verl-npu plan` of fine-tuning with the installed verl: its trainers' own steps at full size, by one process."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import PlanWords

pytestmark = [pytest.mark.e2e, pytest.mark.upstream, pytest.mark.virtual]

NIGHTLY = pytest.mark.nightly("verl_npu_workbench/plan/rank/fine_tuning.py")
START = ("torchrun", "--nnodes=1", "--nproc_per_node=8", "-m")
FSDP = (
    "verl.trainer.fsdp_sft_trainer",
    "data.max_length=1024",
    "data.micro_batch_size_per_gpu=4",
    "model.partial_pretrain=/models/Qwen3-0.6B",
)
ENGINES = (
    "verl.trainer.sft_trainer",
    "data.max_length=1024",
    "data.max_token_len_per_gpu=4096",
    "model.path=/models/Qwen3-0.6B",
    "engine.strategy=fsdp2",
)
Plan = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def plan(plan_words: PlanWords) -> Plan:
    def run(job: tuple[str, ...], *settings: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        return plan_words(options, (*START, *job, *settings))

    return run


def _check(done: subprocess.CompletedProcess[str], phases: list[str]) -> None:
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert (found["verdict"], found["simulated"], found["rollout"]) == ("fits", True, None)
    by_name: dict[str, dict[str, Any]] = {phase["phase"]: phase for phase in found["phases"]}
    assert list(by_name) == phases
    step, parameters = by_name["training step"], found["model"]["parameters"]
    # In float32, an eighth of each; the optimizer has two numbers for a weight, from the second step on.
    assert step["holders"]["weights"] == pytest.approx(4 * parameters / 8, rel=0.02)
    assert step["holders"]["gradients"] == pytest.approx(4 * parameters / 8, rel=0.02)
    assert step["holders"]["optimizer's state"] == pytest.approx(8 * parameters / 8, rel=0.02)
    assert [span["phase"] for span in found["seconds"]] == ["training step", "step"]


@NIGHTLY
@pytest.mark.parametrize(
    ("job", "phases"),
    [
        pytest.param(FSDP, ["load", "training step", "validation", "checkpoint"], id="without engines"),
        # Without data for it there is no validation.
        pytest.param(ENGINES, ["load", "training step", "checkpoint"], id="with engines"),
    ],
)
def test_a_trainer_takes_its_own_steps(plan: Plan, job: tuple[str, ...], phases: list[str]) -> None:
    _check(plan(job, options=("--json", "--no-tries")), phases)
