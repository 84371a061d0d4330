"""`verl-npu plan` of fine-tuning beside a formula by hand: jobs told apart, and what is proposed planned again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tools.plan import forty
from tests.tools.plan.fine_tuning_by_hand import FITTING, GIB, NOT_FITTING, Tuning, step

from .conftest import PlanWords

pytestmark = [pytest.mark.e2e, pytest.mark.upstream, pytest.mark.virtual, pytest.mark.nightly]

NEAR = 0.05
"""How far a step is from the formula at most, which leaves out what is small."""
Plan = Callable[..., dict[str, Any]]


@pytest.fixture
def plan(plan_words: PlanWords, tmp_path: Path) -> Plan:
    def run(job: Tuning, *options: str) -> dict[str, Any]:
        config = tmp_path / "config.json"
        config.write_text(json.dumps(forty.config(job.setting.model)))
        done = plan_words(("--json", "--model-config", str(config), *options), job.command())
        assert done.returncode in (0, 1), done.stderr[-2000:]
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return run


def _is_near(found: dict[str, Any], job: Tuning) -> None:
    tensors = next(phase["tensors"] for phase in found["phases"] if phase["phase"] == "training step")
    assert tensors / GIB == pytest.approx(step(job) / GIB, rel=NEAR)


@pytest.mark.parametrize("job", FITTING, ids=lambda job: job.name)
def test_what_fits_by_hand_fits(plan: Plan, job: Tuning) -> None:
    found = plan(job, "--no-tries")
    assert found["verdict"] == "fits", found["ranks"]
    _is_near(found, job)


@pytest.mark.parametrize("job", NOT_FITTING, ids=lambda job: job.name)
def test_what_does_not_fit_by_hand_fits_as_it_is_proposed(plan: Plan, job: Tuning) -> None:
    found = plan(job)
    assert found["verdict"] == "does not fit", found["ranks"]
    _is_near(found, job)
    # Each proposal has been planned: the last try is that plan.
    assert found["proposal"], found["tries"]
    assert found["tries"][-1]["verdict"] == "fits"
