"""Where the time of a step goes."""

from __future__ import annotations

import pytest

from verl_npu.watch.phases import OTHER, split


def test_phases_are_the_timers_beside_each_other_and_the_rest() -> None:
    metrics = {
        "timing_s/step": 10.0,
        "timing_s/gen": 4.0,
        "timing_s/update_actor": 5.0,
        "timing_s/generate_sequences": 3.5,
        "timing_s/agent_loop/tool_calls/max": 2.0,
        "timing_s/start_profile": 0.1,
        "timing_per_token_ms/gen": 0.2,
        "perf/time_per_step": 10.0,
    }
    assert split(metrics) == pytest.approx({"update_actor": 5.0, "gen": 4.0, OTHER: 1.0})
    assert next(iter(split(metrics))) == "update_actor"


def test_phases_that_run_at_once_leave_no_rest() -> None:
    assert split({"timing_s/step": 5.0, "timing_s/gen": 4.0, "timing_s/update_actor": 3.0}) == {
        "gen": 4.0,
        "update_actor": 3.0,
    }


@pytest.mark.parametrize(
    "metrics",
    [{}, {"timing_s/step": 5.0}, {"timing_s/gen": float("nan")}, {"timing_s/step": float("inf")}],
)
def test_a_step_without_timers_has_no_phases(metrics: dict[str, float]) -> None:
    assert split(metrics) == {}
