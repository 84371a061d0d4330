"""Steps put together from lines: restarts, gaps, repetitions, several lines of one step."""

from __future__ import annotations

import math
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from verl_npu.training_log.line import Line
from verl_npu.training_log.log import Assembly, Restart, TrainingLog, spans


def log_of(lines: Iterable[tuple[int, dict[str, float]]]) -> TrainingLog:
    assembly = Assembly()
    for step, metrics in lines:
        assembly.add(Line(step, metrics))
    return assembly.log("a log")


def test_steps_come_in_order_and_a_metric_has_its_own() -> None:
    log = log_of([(1, {"a": 0.1, "b": 1.0}), (2, {"a": 0.2}), (4, {"a": 0.4})])
    assert log.series("a") == {1: 0.1, 2: 0.2, 4: 0.4}
    assert log.series("b") == {1: 1.0}
    assert log.series("none") == {}
    assert (log.last, log.gaps()) == (4, [(3, 3)])
    assert log.notes() == ["it has no line of step 3"]


def test_the_first_name_that_a_step_has_counts() -> None:
    log = log_of([(1, {"new": 1.0, "old": 9.0}), (2, {"old": 2.0})])
    assert log.series("new", "old") == {1: 1.0, 2: 2.0}


def test_a_later_run_of_a_step_wins_and_this_is_said() -> None:
    log = log_of(
        [*((step, {"a": float(step), "b": 0.0}) for step in (1, 2, 3, 4)), (2, {"a": 20.0}), (3, {"a": 30.0})]
    )
    assert log.steps == {1: {"a": 1.0, "b": 0.0}, 2: {"a": 20.0}, 3: {"a": 30.0}, 4: {"a": 4.0, "b": 0.0}}
    assert (log.last, log.restarts, log.left_over) == (3, (Restart(4, 2),), (4,))
    assert log.notes() == [
        "it went back from step 4 to step 2; of a step that was run twice, the later run counts",
        "step 4 is of an earlier run, and no later run has come so far",
    ]


def test_a_run_that_caught_up_leaves_nothing_over() -> None:
    log = log_of([(1, {"a": 1.0}), (2, {"a": 2.0}), (1, {"a": 1.5}), (2, {"a": 2.5}), (3, {"a": 3.5})])
    assert (log.restarts, log.left_over, log.last) == ((Restart(2, 1),), (), 3)


def test_a_restart_at_the_very_step_is_one() -> None:
    log = log_of([(1, {"a": 1.0}), (1, {"a": 2.0})])
    assert (log.restarts, log.steps[1]) == ((Restart(1, 1),), {"a": 2.0})


def test_training_and_validation_of_a_step_are_one_step() -> None:
    log = log_of([(0, {"val/loss": 9.0}), (1, {"train/loss": 0.5}), (1, {"val/loss": 0.7}), (2, {"train/loss": 0.4})])
    assert log.steps[1] == {"train/loss": 0.5, "val/loss": 0.7}
    assert log.restarts == ()


def test_a_validation_that_comes_late_is_no_restart() -> None:
    log = log_of([(10, {"a": 1.0}), (11, {"a": 2.0}), (12, {"a": 3.0}), (10, {"val": 0.5}), (13, {"a": 4.0})])
    assert (log.restarts, log.last, log.steps[10]) == ((), 13, {"a": 1.0, "val": 0.5})


def test_the_same_lines_again_are_no_news() -> None:
    lines = [(step, {"a": float(step), "b": math.nan}) for step in (1, 2, 3)]
    assert log_of([*lines, *lines]).restarts == ()


def test_spans() -> None:
    assert spans([]) == ""
    assert spans([7, 1, 2, 4, 3]) == "1 to 4, 7"


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.randoms())
def test_what_counts_is_always_what_was_written_last(starts: list[int], random) -> None:  # type: ignore[no-untyped-def]
    """Runs that each begin at some step and end at some later one: compared with a plain dictionary."""
    lines, expected = [], {}
    for run, start in enumerate(starts):
        for step in range(start, start + random.randint(1, 8)):
            value = float(f"{step}.{run + 1}")
            lines.append((step, {"a": value}))
            expected[step] = value
    log = log_of(lines)
    assert log.series("a") == expected
    assert log.last == lines[-1][0]
