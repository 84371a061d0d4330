"""The tolerances of verl-ascend-recipe's check_npu.py, at their edges, for logs and for its published figures."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from verl_npu.comparison.baselines import BASELINES, Baseline
from verl_npu.comparison.criterion import Judged, Outcome
from verl_npu.comparison.regression import judge
from verl_npu.training_log.log import TrainingLog

from .logs import log_of

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
    return dict(zip(ORDER, judge(npu, reference).criteria, strict=True))[name]


references = pytest.mark.parametrize("reference", [run(), PUBLISHED], ids=["a log", "published figures"])


@references
def test_the_same_figures_are_within(reference: TrainingLog | Baseline) -> None:
    verdict = judge(run(), reference)
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
        verdict = judge(run({metric: value}), reference)
        assert verdict.outcome is Outcome.OUTSIDE
        assert [judged.name for judged in verdict.criteria if judged.outcome is Outcome.OUTSIDE] == [name]


@references
def test_only_steps_5_to_14_count_for_means_and_only_the_last_for_memory(reference: TrainingLog | Baseline) -> None:
    steps = {step: dict(GOOD) for step in range(1, 17)}
    for step in (1, 2, 3, 4, 15, 16):
        steps[step] |= {"perf/throughput": 1.0, "timing_s/step": 999.0, "critic/rewards/mean": 9.0}
    for step in range(1, 16):
        steps[step]["actor/perf/max_memory_allocated_gb"] = 99.0
    verdict = judge(log_of(steps), reference)
    assert verdict.outcome is Outcome.WITHIN
    assert verdict.criteria[0].value == 0.0
    assert verdict.criteria[1].steps == tuple(range(5, 15))


@references
@pytest.mark.parametrize("name", ORDER)
def test_a_criterion_that_is_missing_leaves_the_whole_not_shown(reference: TrainingLog | Baseline, name: str) -> None:
    metrics = {key: value for key, value in GOOD.items() if key != list(GOOD)[ORDER.index(name)]}
    verdict = judge(log_of(dict.fromkeys(range(1, 16), metrics)), reference)
    assert verdict.outcome is Outcome.NOT_SHOWN
    assert [judged.name for judged in verdict.criteria if judged.outcome is Outcome.NOT_SHOWN] == [name]


def test_a_log_that_ends_before_step_5_shows_its_memory_alone() -> None:
    verdict = judge(run(steps=4), PUBLISHED)
    assert verdict.outcome is Outcome.NOT_SHOWN
    assert [judged.why for judged in verdict.criteria[1:]] == ["no step from 5 to 14 has it"] * 4


def test_two_logs_are_compared_at_common_steps() -> None:
    reference = log_of({step: {**GOOD, "timing_s/step": 80.0 if step < 10 else 800.0} for step in range(1, 15)})
    npu = log_of({step: dict(GOOD) for step in range(1, 10)})
    judged = outcome(npu, reference, "step time")
    assert (judged.outcome, judged.steps) == (Outcome.WITHIN, (5, 6, 7, 8, 9))


def test_the_older_name_of_the_memory_counts() -> None:
    older = {name.removeprefix("actor/"): value for name, value in GOOD.items()}
    assert outcome(log_of(dict.fromkeys(range(1, 16), older)), PUBLISHED, "memory").outcome is Outcome.WITHIN


def test_no_number_of_the_npus_is_outside() -> None:
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
        verdict = judge(npu, reference)
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
    assert judge(log_of(dict.fromkeys(range(1, 16), own)), baseline).outcome is Outcome.WITHIN
    others = [judge(log_of(dict.fromkeys(range(1, 16), own)), one).outcome for one in BASELINES.values()]
    assert others.count(Outcome.WITHIN) == 1
