"""`verl-npu plan` beside a formula by hand: forty settings told apart, and what is proposed planned again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tools.plan import forty
from tests.tools.plan.by_hand import GIB, MEMORY, Setting, needed, phases

from .conftest import PlanWords

pytestmark = [pytest.mark.e2e, pytest.mark.upstream, pytest.mark.virtual, pytest.mark.nightly]

NEAR = 0.1
"""How far a phase with an NPU's memory or more is from the formula at most, which leaves out what is small."""
Plan = Callable[..., dict[str, Any]]


@pytest.fixture
def plan(plan_words: PlanWords, tmp_path: Path) -> Plan:
    def run(setting: Setting, *overrides: str, tries: bool = False) -> dict[str, Any]:
        config = tmp_path / "config.json"
        config.write_text(json.dumps(forty.config(setting.model)))
        options = ["--json", "--npu", setting.npu, "--model-config", str(config), *(() if tries else ("--no-tries",))]
        job = ["python3", "-m", "verl.trainer.main_ppo", *forty.overrides(setting), *overrides]
        done = plan_words(options, job)
        assert done.returncode in (0, 1), done.stderr[-2000:]
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return run


def _is_near(found: dict[str, Any], setting: Setting) -> None:
    tensors = {phase["phase"]: phase["tensors"] for phase in found["phases"]}
    tensors["rollout"] += max(found["rollout"]["taken"], found["rollout"]["least"])
    for phase, size in phases(setting).items():
        assert tensors[phase] == pytest.approx(size, rel=NEAR, abs=NEAR * MEMORY[setting.npu]), phase


@pytest.mark.parametrize("setting", forty.FITTING, ids=lambda setting: setting.name)
def test_what_fits_by_hand_fits(plan: Plan, setting: Setting) -> None:
    found = plan(setting)
    assert found["verdict"] == "fits", found["ranks"]
    _is_near(found, setting)


@pytest.mark.parametrize("setting", forty.NOT_FITTING, ids=lambda setting: setting.name)
def test_what_does_not_fit_by_hand_fits_as_it_is_proposed(plan: Plan, setting: Setting) -> None:
    found = plan(setting, tries=True)
    assert found["verdict"] == "does not fit", found["ranks"]
    _is_near(found, setting)
    by_hand = max(phases(setting), key=lambda phase: phases(setting)[phase])
    failing = {phase["phase"] for phase in found["phases"] if phase["fit"] == "does not fit"}
    assert by_hand in failing, f"by hand it needs {needed(setting) / GIB:.1f} of {MEMORY[setting.npu] / GIB:.1f} GiB"
    assert found["proposal"], found["tries"]
    again = plan(setting, *(f"++{key}={value}" for key, value in found["proposal"].items()))
    assert again["verdict"] == "fits"
