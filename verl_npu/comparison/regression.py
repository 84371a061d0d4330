"""What verl-ascend-recipe asks of an NPU beside an earlier run on the same NPUs.

baseline/check_npu.py of verl-project/verl-ascend-recipe at 20e526a5: memory of the last step, and means over steps 5
to 14. Less memory, more throughput and shorter steps are never outside; the version before, 2a3edec0, refused those.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from ..training_log.log import TrainingLog
from ..training_log.metrics import DRIFT, MEMORY, REWARD, THROUGHPUT, Metric
from ..training_log.numbers import mean
from .baselines import Baseline
from .criterion import Judged, Outcome, Verdict, outside_of_numbers
from .parity import common

__all__ = ["NAME", "WINDOW", "judge"]

NAME = "regression"
WINDOW = range(5, 15)

_TITLE = "an NPU beside an earlier run on NPUs"
_SOURCE = "baseline/check_npu.py of verl-project/verl-ascend-recipe at 20e526a5"
# The script takes this name alone.
_STEP_SECONDS = Metric("step time", ("timing_s/step",))
_ANY = float("inf")


@dataclass(frozen=True, slots=True)
class _Rule:
    title: str
    metric: Metric
    published: Callable[[Baseline], float]
    limit: str
    least: float
    most: float
    """The bounds of the change, which is the NPU's figure less the reference's."""
    relative: bool
    """The change is in percent of the reference."""
    of_the_machine: bool
    """It is speed or memory, and virtual NPUs have neither an NPU's."""


_MEMORY = _Rule("memory", MEMORY, attrgetter("memory"), "at most 1 GB more", -_ANY, 1, False, True)
_MEANS = (
    _Rule("throughput", THROUGHPUT, attrgetter("throughput"), "at most 5 % less", -5, _ANY, True, True),
    _Rule("step time", _STEP_SECONDS, attrgetter("step_seconds"), "at most 5 % more", -_ANY, 5, True, True),
    _Rule("reward", REWARD, attrgetter("reward"), "within 0.05", -0.05, 0.05, False, False),
    _Rule("rollout drift", DRIFT, attrgetter("drift"), "within 5 %", -5, 5, True, False),
)


def judge(npu: TrainingLog, reference: TrainingLog | Baseline) -> Verdict:
    """Judge a log by another one, at the steps that both have, or by published figures."""
    criteria = (_memory(npu, reference), *(_mean(rule, npu, reference) for rule in _MEANS))
    # The script ends with an error where one of its metrics is missing.
    return Verdict(NAME, _TITLE, _SOURCE, criteria, needs_all=True)


def _memory(npu: TrainingLog, reference: TrainingLog | Baseline) -> Judged:
    a = _last(MEMORY.of(npu))
    b = {0: reference.memory} if isinstance(reference, Baseline) else _last(MEMORY.of(reference))
    missing = "" if a and b else f"the {'reference' if a else 'NPU log'} has no {MEMORY.name}"
    missing = _not_a_machines(_MEMORY, npu, reference) or missing
    return _judged(_MEMORY, f"NPU - reference, each at its last step, of {MEMORY.name}", a, b, missing)


def _last(values: dict[int, float]) -> dict[int, float]:
    return dict(list(values.items())[-1:])


def _mean(rule: _Rule, npu: TrainingLog, reference: TrainingLog | Baseline) -> Judged:
    if isinstance(reference, Baseline):
        a = rule.metric.of(npu)
        b = dict.fromkeys(a, rule.published(reference))
        missing = "" if a else f"the NPU log has no {rule.metric.name}"
    else:
        a, b, missing = common(rule.metric, npu, reference)
    a, b = ({step: value for step, value in each.items() if step in WINDOW} for each in (a, b))
    missing = _not_a_machines(rule, npu, reference) or missing
    if not missing and not a:
        missing = f"no step from {WINDOW[0]} to {WINDOW[-1]} has it"
    change = "(NPU - reference) / reference x 100 %" if rule.relative else "NPU - reference"
    formula = f"{change}, of the means over steps {WINDOW[0]} to {WINDOW[-1]}, of {rule.metric.name}"
    return _judged(rule, formula, a, b, missing)


def _not_a_machines(rule: _Rule, npu: TrainingLog, reference: TrainingLog | Baseline) -> str:
    simulated = npu.simulated or (isinstance(reference, TrainingLog) and reference.simulated)
    return "SIMULATED: virtual NPUs do not show it" if rule.of_the_machine and simulated else ""


def _judged(rule: _Rule, formula: str, a: dict[int, float], b: dict[int, float], missing: str) -> Judged:
    unusable = None if missing else outside_of_numbers(a, b)
    if not missing and not unusable and rule.relative and mean(b.values()) == 0:
        missing = "the reference's is 0, and the change is relative to it"
    if missing:
        return Judged(rule.title, formula, rule.limit, Outcome.NOT_SHOWN, why=missing)
    if unusable:
        return Judged(rule.title, formula, rule.limit, unusable[0], steps=tuple(a), why=unusable[1])
    npu, reference = mean(a.values()), mean(b.values())
    value = (npu - reference) / reference * 100 if rule.relative else npu - reference
    outcome = Outcome.WITHIN if rule.least <= value <= rule.most else Outcome.OUTSIDE
    unit = "%" if rule.relative else ""
    return Judged(rule.title, formula, rule.limit, outcome, npu, reference, value, unit, tuple(a))
