"""What is to be seen of a training now."""

from __future__ import annotations

import pytest

from tests.comparison.logs import log_of
from verl_npu.training_log.line import Line
from verl_npu.training_log.log import Assembly
from verl_npu.watch.state import content, state_of


def test_a_log_without_steps_has_no_state() -> None:
    assert state_of(Assembly().log("a log")) is None


def test_the_last_step_its_phases_and_its_speed() -> None:
    steps = {
        step: {
            "timing_s/step": 10.0,
            "timing_s/gen": 4.0 + step,
            "perf/total_num_tokens": 5000,
            "perf/throughput": 250.0,
            "critic/rewards/mean": 0.5,
        }
        for step in (1, 2, 3)
    }
    state = state_of(log_of(steps))
    assert state is not None
    assert (state.step, state.seconds, state.tokens_per_second, state.throughput) == (3, 10.0, 500.0, 250.0)
    assert [(phase.name, phase.seconds, phase.usual) for phase in state.phases] == [
        ("gen", 7.0, 6.0),
        ("the rest", 3.0, 4.0),
    ]
    told = content(state)
    assert told["metrics"] == pytest.approx({"reward": 0.5, "throughput, tokens/s/NPU": 250.0, "step time, s": 10.0})
    assert told["odd"] == []


def test_after_a_restart_the_step_is_the_one_that_runs() -> None:
    assembly = Assembly()
    for step, value in ((1, 1.0), (2, 2.0), (3, 3.0), (2, 9.0)):
        assembly.add(Line(step, {"a": value}))
    state = state_of(assembly.log("a log"))
    assert state is not None
    assert state.step == 2
