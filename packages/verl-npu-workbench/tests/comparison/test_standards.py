"""The standards of verl's guide for Ascend, computed by a second formula, at steps that both logs have.

The tolerances of verl-ascend-recipe's check_npu.py, at their edges, for logs and for its published figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from verl_npu_workbench.comparison.standards import (
    BASELINES,
    Baseline,
    Judged,
    Outcome,
    judge_parity,
    judge_regression,
)
from verl_npu_workbench.logs.training import TrainingLog

from .logs import constant, log_of

REWARD, LOSS, THROUGHPUT = "critic/rewards/mean", "train/loss", "perf/throughput"


def reward(npu: TrainingLog, reference: TrainingLog) -> Judged:
    return judge_parity(npu, reference).criteria[0]


def loss(npu: TrainingLog, reference: TrainingLog) -> Judged:
    return judge_parity(npu, reference).criteria[1]


def throughput(npu: TrainingLog, reference: TrainingLog) -> Judged:
    return judge_parity(npu, reference).criteria[2]


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
        (log_of({1: {REWARD: 1.0}}), log_of({2: {REWARD: 1.0}}), "the logs have this metric at no common step"),
        (constant(1.0), constant(math.nan), "the reference has no finite number at step 1 to 20"),
    ],
)
def test_what_the_logs_do_not_say_is_not_shown(npu: TrainingLog, reference: TrainingLog, why: str) -> None:
    judged = reward(npu, reference)
    assert (judged.outcome, judged.value, judged.why) == (Outcome.NOT_SHOWN, None, why)
    assert judge_parity(npu, reference).outcome is Outcome.NOT_SHOWN


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_number_of_the_npus_is_outside_by_parity(value: float) -> None:
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
        (
            constant(1.0, THROUGHPUT, steps=3),
            constant(1.0, THROUGHPUT),
            "both logs have this metric at only 3 steps, but 4 steps are needed",
        ),
        (constant(1.0, THROUGHPUT), constant(0.0, THROUGHPUT), "the reference has 0"),
        (constant(math.nan, THROUGHPUT), constant(1.0, THROUGHPUT), "some of the first values are not finite numbers"),
        (
            log_of({step: {THROUGHPUT: 1.0} for step in range(9)}, simulated=True),
            constant(1.0, THROUGHPUT),
            "SIMULATED: virtual NPUs do not show this criterion",
        ),
    ],
)
def test_throughput_that_cannot_be_told_is_not_shown(npu: TrainingLog, reference: TrainingLog, why: str) -> None:
    judged = throughput(npu, reference)
    assert (judged.outcome, judged.why) == (Outcome.NOT_SHOWN, why)


def test_throughput_alone_is_no_verdict() -> None:
    assert judge_parity(constant(1.0, THROUGHPUT), constant(1.0, THROUGHPUT)).outcome is Outcome.NOT_SHOWN


def test_a_job_has_a_reward_or_a_loss_and_one_is_enough() -> None:
    verdict = judge_parity(constant(2.0, LOSS), constant(2.0, LOSS))
    assert (verdict.outcome, verdict.shown) == (Outcome.WITHIN, "1 of 2 criteria shown")


GOOD = {
    "actor/perf/max_memory_allocated_gb": 20.0,
    "perf/throughput": 200.0,
    "timing_s/step": 80.0,
    "critic/rewards/mean": 0.4,
    "training/rollout_probs_diff_mean": 0.005,
}
PUBLISHED = Baseline("one", "run_one", "A2", memory=20.0, step_seconds=80.0, throughput=200.0, reward=0.4, drift=0.005)
ORDER = ("memory", "throughput", "step time", "reward", "rollout drift")


def run(metrics: Mapping[str, float] | None = None, steps: int = 15, simulated: bool = False) -> TrainingLog:
    return log_of({step: {**GOOD, **(metrics or {})} for step in range(1, steps + 1)}, simulated)


def outcome(npu: TrainingLog, reference: TrainingLog | Baseline, name: str) -> Judged:
    return dict(zip(ORDER, judge_regression(npu, reference).criteria, strict=True))[name]


references = pytest.mark.parametrize("reference", [run(), PUBLISHED], ids=["a log", "published figures"])


@references
def test_the_same_figures_are_within(reference: TrainingLog | Baseline) -> None:
    verdict = judge_regression(run(), reference)
    assert (verdict.outcome, verdict.shown) == (Outcome.WITHIN, "5 of 5 criteria shown")


@references
@pytest.mark.parametrize(
    ("name", "metric", "good", "bad"),
    [
        ("memory", "actor/perf/max_memory_allocated_gb", (20.99, 1.0), (21.01,)),
        ("throughput", "perf/throughput", (190.1, 900.0), (189.9,)),
        ("step time", "timing_s/step", (83.9, 8.0), (84.1,)),
        ("reward", "critic/rewards/mean", (0.449, 0.351), (0.451, 0.349)),
        ("rollout drift", "training/rollout_probs_diff_mean", (0.00524, 0.00476), (0.00526, 0.00474)),
    ],
)
def test_each_tolerance_at_its_edge(
    reference: TrainingLog | Baseline, name: str, metric: str, good: tuple[float, ...], bad: tuple[float, ...]
) -> None:
    for value in good:
        assert outcome(run({metric: value}), reference, name).outcome is Outcome.WITHIN
    for value in bad:
        verdict = judge_regression(run({metric: value}), reference)
        assert verdict.outcome is Outcome.OUTSIDE
        assert [judged.name for judged in verdict.criteria if judged.outcome is Outcome.OUTSIDE] == [name]


@references
def test_only_steps_5_to_14_count_for_means_and_only_the_last_for_memory(reference: TrainingLog | Baseline) -> None:
    steps = {step: dict(GOOD) for step in range(1, 17)}
    for step in (1, 2, 3, 4, 15, 16):
        steps[step] |= {"perf/throughput": 1.0, "timing_s/step": 999.0, "critic/rewards/mean": 9.0}
    for step in range(1, 16):
        steps[step]["actor/perf/max_memory_allocated_gb"] = 99.0
    verdict = judge_regression(log_of(steps), reference)
    assert verdict.outcome is Outcome.WITHIN
    assert verdict.criteria[0].value == 0.0
    assert verdict.criteria[1].steps == tuple(range(5, 15))


@references
@pytest.mark.parametrize("name", ORDER)
def test_a_criterion_that_is_missing_leaves_the_whole_not_shown(reference: TrainingLog | Baseline, name: str) -> None:
    metrics = {key: value for key, value in GOOD.items() if key != list(GOOD)[ORDER.index(name)]}
    verdict = judge_regression(log_of(dict.fromkeys(range(1, 16), metrics)), reference)
    assert verdict.outcome is Outcome.NOT_SHOWN
    assert [judged.name for judged in verdict.criteria if judged.outcome is Outcome.NOT_SHOWN] == [name]


def test_a_log_that_ends_before_step_5_shows_its_memory_alone() -> None:
    verdict = judge_regression(run(steps=4), PUBLISHED)
    assert verdict.outcome is Outcome.NOT_SHOWN
    assert [judged.why for judged in verdict.criteria[1:]] == ["the log has this metric at no step from 5 to 14"] * 4


def test_two_logs_are_compared_at_common_steps() -> None:
    reference = log_of({step: {**GOOD, "timing_s/step": 80.0 if step < 10 else 800.0} for step in range(1, 15)})
    npu = log_of({step: dict(GOOD) for step in range(1, 10)})
    judged = outcome(npu, reference, "step time")
    assert (judged.outcome, judged.steps) == (Outcome.WITHIN, (5, 6, 7, 8, 9))


def test_the_older_name_of_the_memory_counts() -> None:
    older = {name.removeprefix("actor/"): value for name, value in GOOD.items()}
    assert outcome(log_of(dict.fromkeys(range(1, 16), older)), PUBLISHED, "memory").outcome is Outcome.WITHIN


def test_no_number_of_the_npus_is_outside_by_regression() -> None:
    steps = {step: dict(GOOD) for step in range(1, 16)}
    steps[7]["critic/rewards/mean"] = math.nan
    judged = outcome(log_of(steps), PUBLISHED, "reward")
    assert (judged.outcome, judged.why) == (Outcome.OUTSIDE, "the NPU log has no finite number at step 7")


def test_steps_without_a_valid_token_do_not_count_for_the_drift() -> None:
    steps = {step: {**GOOD, "training/rollout_probs_diff_valid": 1} for step in range(1, 16)}
    steps[7] |= {"training/rollout_probs_diff_mean": math.nan, "training/rollout_probs_diff_valid": 0}
    judged = outcome(log_of(steps), PUBLISHED, "rollout drift")
    assert judged.outcome is Outcome.WITHIN
    assert 7 not in judged.steps


def test_a_change_relative_to_0_is_not_shown() -> None:
    reference = run({"training/rollout_probs_diff_mean": 0.0})
    judged = outcome(run(), reference, "rollout drift")
    assert (judged.outcome, judged.value) == (Outcome.NOT_SHOWN, None)


def test_virtual_npus_show_neither_speed_nor_memory() -> None:
    for npu, reference in (
        (run(simulated=True), run()),
        (run(), run(simulated=True)),
        (run(simulated=True), PUBLISHED),
    ):
        verdict = judge_regression(npu, reference)
        found = {judged.name: judged.outcome for judged in verdict.criteria}
        assert [name for name in ORDER if found[name] is Outcome.NOT_SHOWN] == ["memory", "throughput", "step time"]
        assert verdict.outcome is Outcome.NOT_SHOWN


@pytest.mark.parametrize("baseline", BASELINES.values(), ids=BASELINES.keys())
def test_each_published_baseline_is_within_itself(baseline: Baseline) -> None:
    own = {
        "actor/perf/max_memory_allocated_gb": baseline.memory,
        "perf/throughput": baseline.throughput,
        "timing_s/step": baseline.step_seconds,
        "critic/rewards/mean": baseline.reward,
        "training/rollout_probs_diff_mean": baseline.drift,
    }
    assert judge_regression(log_of(dict.fromkeys(range(1, 16), own)), baseline).outcome is Outcome.WITHIN
    others = [judge_regression(log_of(dict.fromkeys(range(1, 16), own)), one).outcome for one in BASELINES.values()]
    assert others.count(Outcome.WITHIN) == 1


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_of_few_steps_nothing_can_be_said(steps: int) -> None:
    judged = reward(constant(0.5, steps=steps), constant(0.5, steps=steps))
    assert judged.outcome is Outcome.NOT_SHOWN
    assert "4 steps are needed" in judged.why


def test_a_difference_of_just_the_limit_is_within() -> None:
    # In floating point it is 2.0000000000000018 %.
    assert loss(constant(1.12, LOSS), constant(1.1, LOSS)).outcome is Outcome.WITHIN
    assert loss(constant(1.1201, LOSS), constant(1.1, LOSS)).outcome is Outcome.OUTSIDE
    slower = judge_regression(constant(95.0, THROUGHPUT), constant(100.0, THROUGHPUT)).criteria[1]
    assert slower.outcome is Outcome.WITHIN
