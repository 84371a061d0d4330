"""What verl's guide for Ascend asks of an NPU beside a GPU with the same settings.

docs/ascend_tutorial/ascend_quick_start.rst at 796871d7, sections on precision and on throughput. Its formula is the
picture docs/loss_comparison.png of eric-haibin-lin/verl-community: the sum over N steps of |npu - gpu|, divided by N,
times 100 %. It is not divided by the loss or the reward: 4 % is a mean difference of 0.04.
"""

from __future__ import annotations

from ..training_log.log import TrainingLog
from ..training_log.metrics import LOSS, REWARD, THROUGHPUT, Metric
from ..training_log.numbers import mean
from .criterion import NO_LIMIT, Judged, Outcome, Verdict, not_finite, outside_of_numbers

__all__ = ["FIRST_STEPS", "LOSS_LIMIT", "NAME", "REWARD_LIMIT", "judge"]

NAME = "parity"
REWARD_LIMIT = 4.0
LOSS_LIMIT = 2.0
"""In percent, as the guide gives them."""
FIRST_STEPS = 4

_TITLE = "an NPU beside a GPU"
_SOURCE = "verl's docs/ascend_tutorial/ascend_quick_start.rst at 796871d7"


def judge(npu: TrainingLog, reference: TrainingLog) -> Verdict:
    """Judge the steps that are in both logs."""
    criteria = (
        _mean_error(REWARD, REWARD_LIMIT, npu, reference),
        _mean_error(LOSS, LOSS_LIMIT, npu, reference),
        _throughput(npu, reference),
    )
    # A job has a reward or a loss.
    return Verdict(NAME, _TITLE, _SOURCE, criteria, needs_all=False)


def _mean_error(metric: Metric, limit: float, npu: TrainingLog, reference: TrainingLog) -> Judged:
    formula = f"mean over all common steps of |NPU - reference| x 100 %, of {metric.name}"
    words = f"at most {limit:g} %"
    a, b, missing = common(metric, npu, reference)
    if missing:
        return Judged(metric.title, formula, words, Outcome.NOT_SHOWN, why=missing)
    unusable = outside_of_numbers(a, b)
    if unusable:
        return Judged(metric.title, formula, words, unusable[0], steps=tuple(a), why=unusable[1])
    error = mean([abs(a[step] - b[step]) for step in a]) * 100
    outcome = Outcome.WITHIN if error <= limit else Outcome.OUTSIDE
    means = mean(a.values()), mean(b.values())
    return Judged(metric.title, formula, words, outcome, *means, error, "%", tuple(a))


def _throughput(npu: TrainingLog, reference: TrainingLog) -> Judged:
    name = THROUGHPUT.name
    formula = f"NPU / reference, each the mean of {name} over the first {FIRST_STEPS} common steps"
    a, b, missing = common(THROUGHPUT, npu, reference)
    a, b = (dict(list(each.items())[:FIRST_STEPS]) for each in (a, b))
    if npu.simulated or reference.simulated:
        missing = "SIMULATED: virtual NPUs do not show it"
    if not missing and len(a) < FIRST_STEPS:
        missing = f"only {len(a)} steps have it in both logs"
    if not missing and (not_finite(a) or not_finite(b)):
        missing = "not all of its first values are finite numbers"
    if not missing and mean(b.values()) == 0:
        missing = "the reference's is 0"
    if missing:
        return Judged("throughput", formula, NO_LIMIT, Outcome.NOT_SHOWN, why=missing)
    means = mean(a.values()), mean(b.values())
    return Judged("throughput", formula, NO_LIMIT, Outcome.NO_LIMIT, *means, means[0] / means[1], "", tuple(a))


def common(metric: Metric, npu: TrainingLog, reference: TrainingLog) -> tuple[dict[int, float], dict[int, float], str]:
    """Return a metric of both logs at the steps that have it in both, and why there are none."""
    a, b = metric.of(npu), metric.of(reference)
    steps = [step for step in a if step in b]
    lacking = [who for who, values in (("the NPU log", a), ("the reference", b)) if not values]
    missing = ""
    if lacking:
        missing = f"{' and '.join(lacking)} {'have' if len(lacking) > 1 else 'has'} no {metric.name}"
    elif not steps:
        missing = "no step has it in both logs"
    return {step: a[step] for step in steps}, {step: b[step] for step in steps}, missing
