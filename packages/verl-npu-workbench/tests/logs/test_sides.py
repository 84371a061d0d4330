"""The side of an asynchronous training that waits is reported where verl logs it, and only there."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from verl_npu_workbench.logs.sides import RECENT, waiting_of
from verl_npu_workbench.logs.training import Assembly, StepLine, TrainingLog, read

from .conftest import Write

V1 = {
    "timing_s/step": 10.0,
    "timing_s/gen": 0.06,
    "timing_s/update_weights": 0.3,
    "training/off_policy/trajectory_spans/max": 1.0,
    "training/off_policy/trajectory_staleness/min": 1.0,
}
WAITS, CUT = {"timing_s/gen": 3.0}, {"training/off_policy/trajectory_spans/max": 2.0}
ONE_STEP = {"timing_s/step": 10.0, "timing_s/sync_rollout_weights": 0.5}


def log_of(each: Mapping[str, float], steps: int = 8, mode: str = "separate_async") -> TrainingLog:
    """Return a log whose first step, which does not count, differs from the others."""
    assembly = Assembly(mode=mode)
    assembly.add(StepLine(1, {**each, "timing_s/gen": 8.0, "trainer/idle_ratio": 0.8, "timing_s/wait_prev_gen": 8.0}))
    for step in range(2, steps + 1):
        assembly.add(StepLine(step, each))
    return assembly.log("a log")


@pytest.mark.parametrize(
    ("metrics", "trainer", "text"),
    [
        (V1, 0.006, "the servers wait for the trainer: the servers were idle at each of the last 7 syncs"),
        (
            V1 | WAITS,
            0.3,
            "the trainer and the servers wait for each other in turn: the trainer waits for 30% of a step",
        ),
        (V1 | WAITS | CUT, 0.3, "or let the trainer's NPUs help to serve (trainer.v1.separate_async.hybrid_rollout"),
        (V1 | WAITS | CUT | {"timing_s/switch_wait": 2.0}, 0.3, "although its NPUs help to serve: give the servers"),
        (V1 | CUT, 0.006, "neither side waits for long: the trainer waits for 1% of a step"),
        # Nobody knows when samples that were dropped, or taken from an earlier run, were generated.
        (V1 | {"training/off_policy/evicted_samples": 2.0}, 0.006, ""),
        (V1 | {"training/off_policy/trajectory_staleness/min": -1.0}, 0.006, ""),
    ],
)
def test_v1s_separate_trainer(metrics: dict[str, float], trainer: float, text: str) -> None:
    found = waiting_of(log_of(metrics))
    assert found is not None
    assert (found.trainer, found.servers) == (pytest.approx(trainer), None)
    assert text in found.text if text else not found.text


def test_servers_that_are_cut_at_some_syncs_are_not_judged() -> None:
    log = log_of(V1)
    steps = {step: {**each, **(CUT if step == 5 else {})} for step, each in log.steps.items()}
    found = waiting_of(TrainingLog("a log", steps, last=8, mode="separate_async"))
    assert found is not None
    assert not found.text


@pytest.mark.parametrize("mode", ["colocate_async", "sync", ""])
def test_a_trainer_that_shares_its_npus_waits_for_nobody(mode: str) -> None:
    assert waiting_of(log_of(V1 | WAITS, mode=mode)) is None
    # Trainers other than v1's have the mode in their configuration as well.
    assert waiting_of(log_of({"timing_s/step": 10.0, **WAITS})) is None


def test_the_mode_is_the_configurations_else_what_the_trainer_does_before_its_first_step(write: Write) -> None:
    steps = dict.fromkeys(range(1, 6), V1 | WAITS)
    assert waiting_of(read(write(steps))) is None
    log = write(steps)
    log.write_text("(TaskRunnerV1 pid=12)     'trainer_mode': 'separate_async'},\n" + log.read_text())
    assert waiting_of(read(log)) is not None
    steps[1] = V1 | {"timing_s/switch_to_trainer": 0.05}
    assert waiting_of(read(write(steps))) is not None


def test_few_steps_tell_nothing_and_of_many_the_recent_ones_count() -> None:
    assert waiting_of(log_of(V1, steps=3)) is None
    log = log_of(V1 | WAITS, steps=60)
    steps = {step: {**each, **(V1 if step > 60 - RECENT else {})} for step, each in log.steps.items()}
    found = waiting_of(TrainingLog("a log", steps, last=60, mode="separate_async"))
    assert found is not None
    assert found.trainer < 0.01


@pytest.mark.parametrize("prefix", ["", "fully_async/"])
@pytest.mark.parametrize(
    ("trainer", "servers", "text"),
    [
        (0.4, 0.02, "give the servers more NPUs and the trainer fewer"),
        (0.01, 0.3, "give the trainer more NPUs and the servers fewer"),
        (0.2, 0.3, "a larger async_training.staleness_threshold"),
        (0.01, 0.0, "neither side waits for long"),
    ],
)
def test_fully_async_says_it_of_both_sides(prefix: str, trainer: float, servers: float, text: str) -> None:
    idle = {f"{prefix}trainer/idle_ratio": trainer, f"{prefix}rollouter/idle_ratio": servers}
    found = waiting_of(log_of(idle))
    assert found is not None
    assert (found.trainer, found.servers) == (trainer, servers)
    assert text in found.text


def test_a_rollouter_that_says_nothing_is_not_judged_and_one_that_says_it_once_was_hardly_idle() -> None:
    found = waiting_of(log_of({"trainer/idle_ratio": 0.4}))
    assert found is not None
    assert (found.servers, found.text) == (None, "")
    steps = {step: {"trainer/idle_ratio": 0.4} for step in range(1, 9)}
    steps[4]["rollouter/idle_ratio"] = 0.9
    found = waiting_of(TrainingLog("a log", steps, last=8))
    assert found is not None
    assert found.servers == 0.0


@pytest.mark.parametrize("name", ["timing_s/wait_prev_gen", "timing_s/gen"])
@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.0, "the trainer waits for answers for 40% of a step"), (0.05, "the servers wait for the trainer"), (0.3, "")],
)
def test_one_step_off(name: str, seconds: float, text: str) -> None:
    found = waiting_of(log_of(ONE_STEP | {name: seconds}, mode=""))
    assert found is not None
    assert found.trainer == pytest.approx(seconds / 10)
    assert text in found.text if text else not found.text
