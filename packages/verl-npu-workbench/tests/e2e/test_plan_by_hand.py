"""`verl-npu plan` agrees with a formula by hand on which jobs fit, and its proposals fit when planned again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.plan import fine_tuning_by_hand, forty
from tests.plan.by_hand import GIB, MARGIN, MEMORY, Setting, needed, phases
from tests.plan.fine_tuning_by_hand import Tuning, step

from .conftest import PlanWords

pytestmark = [pytest.mark.e2e, pytest.mark.upstream, pytest.mark.virtual, pytest.mark.nightly]

TOLERANCE, TUNING_TOLERANCE = 0.1, 0.05
"""The largest relative distance from the formula, which omits small terms, of a phase as large as an NPU's memory, and
of a step of fine-tuning."""
Plan = Callable[..., dict[str, Any]]


@pytest.fixture
def plan(plan_words: PlanWords, tmp_path: Path) -> Plan:
    """Return a function that plans a job with the model of its setting, and further overrides."""

    def run(job: Setting | Tuning, *overrides: str, tries: bool = False) -> dict[str, Any]:
        model = (job.setting if isinstance(job, Tuning) else job).model
        config = tmp_path / "config.json"
        config.write_text(json.dumps(forty.config(model)))
        options = ["--json", "--npu", job.npu, "--model-config", str(config), *(() if tries else ("--no-tries",))]
        ppo = ["python3", "-m", "verl.trainer.main_ppo"]
        words = job.command() if isinstance(job, Tuning) else [*ppo, *forty.overrides(job)]
        done = plan_words(options, [*words, *overrides])
        assert done.returncode in (0, 1), done.stderr[-2000:]
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return run


def _is_near(found: dict[str, Any], job: Setting | Tuning) -> None:
    tensors = {phase["phase"]: phase["tensors"] for phase in found["phases"]}
    if isinstance(job, Tuning):
        assert tensors["training step"] / GIB == pytest.approx(step(job) / GIB, rel=TUNING_TOLERANCE)
        return
    tensors["rollout"] += max(found["rollout"]["taken"], found["rollout"]["least"])
    for phase, size in phases(job).items():
        assert tensors[phase] == pytest.approx(size, rel=TOLERANCE, abs=TOLERANCE * MEMORY[job.npu]), phase


def _needed(job: Setting | Tuning) -> float:
    """Return the part of an NPU's memory that a job needs, computed by hand."""
    size = fine_tuning_by_hand.needed(job) if isinstance(job, Tuning) else needed(job)
    return size / MEMORY[job.npu]


@pytest.mark.parametrize("job", [*forty.FITTING, *fine_tuning_by_hand.FITTING], ids=lambda job: job.name)
def test_what_fits_by_hand_fits(plan: Plan, job: Setting | Tuning) -> None:
    assert _needed(job) < 1 - MARGIN
    found = plan(job)
    assert found["verdict"] == "fits", found["ranks"]
    _is_near(found, job)


@pytest.mark.parametrize("job", [*forty.NOT_FITTING, *fine_tuning_by_hand.NOT_FITTING], ids=lambda job: job.name)
def test_what_does_not_fit_by_hand_fits_as_it_is_proposed(plan: Plan, job: Setting | Tuning) -> None:
    assert _needed(job) > 1 + MARGIN
    found = plan(job, tries=True)
    assert found["verdict"] == "does not fit", found["ranks"]
    _is_near(found, job)
    # The last try is the plan of the proposal.
    assert found["proposal"], found["tries"]
    assert found["tries"][-1]["verdict"] == "fits"
    if isinstance(job, Setting):
        failing = {phase["phase"] for phase in found["phases"] if phase["fit"] == "does not fit"}
        assert max(phases(job), key=lambda phase: phases(job)[phase]) in failing
        again = plan(job, *(f"++{key}={value}" for key, value in found["proposal"].items()))
        assert again["verdict"] == "fits"
