"""What verl's guide for Ascend asks: by a formula of its own, at steps that both logs have."""

from __future__ import annotations

import math

import pytest

from verl_npu.comparison.criterion import Judged, Outcome
from verl_npu.comparison.parity import judge
from verl_npu.training_log.log import TrainingLog

from .logs import constant, log_of

REWARD, LOSS, THROUGHPUT = "critic/rewards/mean", "train/loss", "perf/throughput"


def reward(npu: TrainingLog, reference: TrainingLog) -> Judged:
    return judge(npu, reference).criteria[0]


def loss(npu: TrainingLog, reference: TrainingLog) -> Judged:
    return judge(npu, reference).criteria[1]


def throughput(npu: TrainingLog, reference: TrainingLog) -> Judged:
    return judge(npu, reference).criteria[2]


@pytest.mark.parametrize(("difference", "outcome"), [(0.039, Outcome.WITHIN), (0.041, Outcome.OUTSIDE)])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_reward_may_differ_by_four_percent_whatever_it_is(difference: float, outcome: Outcome, sign: int) -> None:
    for level in (0.0, 0.5, -0.9, 7.0):
        judged = reward(constant(level + sign * difference), constant(level))
        assert judged.outcome is outcome
        assert judged.value == pytest.approx(difference * 100)


@pytest.mark.parametrize(("difference", "outcome"), [(0.019, Outcome.WITHIN), (0.021, Outcome.OUTSIDE)])
def test_the_loss_may_differ_by_two_percent(difference: float, outcome: Outcome) -> None:
    assert loss(constant(2.0 + difference, LOSS), constant(2.0, LOSS)).outcome is outcome


def test_differences_do_not_cancel_out() -> None:
    npu = log_of({1: {REWARD: 0.6}, 2: {REWARD: 0.4}})
    reference = log_of({1: {REWARD: 0.5}, 2: {REWARD: 0.5}})
    assert reward(npu, reference).value == pytest.approx(10.0)


def test_only_steps_that_both_have_count() -> None:
    npu = log_of({1: {REWARD: 0.5}, 2: {REWARD: 9.0}, 5: {REWARD: 0.5}})
    reference = log_of({1: {REWARD: 0.5}, 3: {REWARD: 9.0}, 5: {REWARD: 0.5}, 6: {REWARD: 9.0}})
    judged = reward(npu, reference)
    assert (judged.steps, judged.value) == ((1, 5), 0.0)


@pytest.mark.parametrize(
    ("npu", "reference", "why"),
    [
        (constant(1.0, "other"), constant(1.0), "the NPU log has no critic/rewards/mean"),
        (constant(1.0), constant(1.0, "other"), "the reference has no critic/rewards/mean"),
        (log_of({1: {REWARD: 1.0}}), log_of({2: {REWARD: 1.0}}), "no step has it in both logs"),
        (constant(1.0), constant(math.nan), "the reference has no finite number at step 1 to 20"),
    ],
)
def test_what_the_logs_do_not_say_is_not_shown(npu: TrainingLog, reference: TrainingLog, why: str) -> None:
    judged = reward(npu, reference)
    assert (judged.outcome, judged.value, judged.why) == (Outcome.NOT_SHOWN, None, why)
    assert judge(npu, reference).outcome is Outcome.NOT_SHOWN


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_number_of_the_npus_is_outside(value: float) -> None:
    npu = log_of({1: {REWARD: 0.5}, 2: {REWARD: value}})
    judged = reward(npu, constant(0.5))
    assert (judged.outcome, judged.why) == (Outcome.OUTSIDE, "the NPU log has no finite number at step 2")


def test_throughput_is_of_the_first_four_steps_and_has_no_limit() -> None:
    npu = log_of({step: {THROUGHPUT: 50.0 if step < 5 else 999.0} for step in range(1, 10)})
    judged = throughput(npu, constant(100.0, THROUGHPUT))
    assert (judged.outcome, judged.value, judged.steps) == (Outcome.NO_LIMIT, 0.5, (1, 2, 3, 4))


def test_throughput_takes_the_first_steps_that_both_have() -> None:
    npu = log_of({step: {THROUGHPUT: float(step)} for step in range(11, 20)})
    assert throughput(npu, constant(1.0, THROUGHPUT)).steps == (11, 12, 13, 14)


@pytest.mark.parametrize(
    ("npu", "reference", "why"),
    [
        (constant(1.0, THROUGHPUT, steps=3), constant(1.0, THROUGHPUT), "only 3 steps have it in both logs"),
        (constant(1.0, THROUGHPUT), constant(0.0, THROUGHPUT), "the reference's is 0"),
        (constant(math.nan, THROUGHPUT), constant(1.0, THROUGHPUT), "not all of its first values are finite numbers"),
        (
            log_of({step: {THROUGHPUT: 1.0} for step in range(9)}, simulated=True),
            constant(1.0, THROUGHPUT),
            "SIMULATED: virtual NPUs do not show it",
        ),
    ],
)
def test_throughput_that_cannot_be_told_is_not_shown(npu: TrainingLog, reference: TrainingLog, why: str) -> None:
    judged = throughput(npu, reference)
    assert (judged.outcome, judged.why) == (Outcome.NOT_SHOWN, why)


def test_throughput_alone_is_no_verdict() -> None:
    assert judge(constant(1.0, THROUGHPUT), constant(1.0, THROUGHPUT)).outcome is Outcome.NOT_SHOWN


def test_a_job_has_a_reward_or_a_loss_and_one_is_enough() -> None:
    verdict = judge(constant(2.0, LOSS), constant(2.0, LOSS))
    assert (verdict.outcome, verdict.shown) == (Outcome.WITHIN, "1 of 2 criteria shown")
