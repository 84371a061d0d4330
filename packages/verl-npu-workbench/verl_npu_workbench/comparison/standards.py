"""By what a training on NPUs is judged: two standards, and the figures that are published for the second.

Parity is what verl's guide for Ascend asks of an NPU beside a GPU with the same settings:
docs/ascend_tutorial/ascend_quick_start.rst at 796871d7, sections on precision and on throughput. Its formula is the
picture docs/loss_comparison.png of eric-haibin-lin/verl-community: the sum over N steps of |npu - gpu|, divided by N,
times 100 %. It is not divided by the loss or the reward: 4 % is a mean difference of 0.04.

Regression is what verl-ascend-recipe asks of an NPU beside an earlier run on the same NPUs: baseline/check_npu.py of
verl-project/verl-ascend-recipe at 20e526a5: memory of the last step, and means over steps 5 to 14. Less memory, more
throughput and shorter steps are never outside; the version before, 2a3edec0, refused those.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from pathlib import Path

from verl_npu.language import gettext as _
from verl_npu.language import ngettext

from ..logs.metrics import DRIFT, LOSS, MEMORY, REWARD, THROUGHPUT, Metric, mean
from ..logs.training import TrainingLog, spans


@dataclass(frozen=True, slots=True)
class Baseline:
    """What one job measured on real NPUs: it holds for that script on that hardware alone."""

    name: str
    script: str
    hardware: str
    memory: float
    """GiB, `actor/perf/max_memory_allocated_gb` of the last step."""
    step_seconds: float
    throughput: float
    """Tokens a second and NPU."""
    reward: float
    drift: float
    """`training/rollout_probs_diff_mean`."""


_PUBLISHED = json.loads(Path(__file__).with_name("baselines.json").read_text())
SOURCE: str = _PUBLISHED["source"]
BASELINES = {each["name"]: Baseline(**each) for each in _PUBLISHED["baselines"]}
"""One text file for each job, with one figure for each metric; the job's script is in its file's name."""


_NO_LIMIT = "none"


class Outcome(Enum):
    """What a criterion, or a standard, came to."""

    WITHIN = "within"
    OUTSIDE = "outside"
    NOT_SHOWN = _("not shown")
    """The logs do not say, so it counts neither way."""
    NO_LIMIT = _("no limit")
    """It was measured, and the standard sets no limit to it."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One criterion with what was measured."""

    name: str
    formula: str
    limit: str
    outcome: Outcome
    npu: float | None = None
    """The NPU log's own figure, of those that were compared."""
    reference: float | None = None
    value: float | None = None
    """What the formula gives."""
    unit: str = ""
    steps: tuple[int, ...] = ()
    why: str = ""
    """Why it is not shown, or outside without a value."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A standard, and what its criteria came to."""

    name: str
    title: str
    source: str
    criteria: tuple[Judged, ...]
    needs_all: bool
    """The standard is kept only if each of its criteria is shown; otherwise one is enough."""

    @property
    def shown(self) -> str:
        """How many of the criteria that have a limit could be judged, in words."""
        limited = [judged for judged in self.criteria if judged.limit != _NO_LIMIT]
        shown = sum(judged.outcome in (Outcome.WITHIN, Outcome.OUTSIDE) for judged in limited)
        return _("{shown} of {count} criteria shown").format(shown=shown, count=len(limited))

    @property
    def outcome(self) -> Outcome:
        """Outside if one criterion is; within if as many as the standard needs are; else not shown."""
        found = {judged.outcome for judged in self.criteria}
        if Outcome.OUTSIDE in found:
            return Outcome.OUTSIDE
        lacking = Outcome.WITHIN not in found or (self.needs_all and Outcome.NOT_SHOWN in found)
        return Outcome.NOT_SHOWN if lacking else Outcome.WITHIN


def _not_finite(values: Mapping[int, float]) -> tuple[int, ...]:
    """Return the steps at which a value is NaN or infinite."""
    return tuple(step for step, value in values.items() if not -float("inf") < value < float("inf"))


def _outside_of_numbers(npu: Mapping[int, float], reference: Mapping[int, float]) -> tuple[Outcome, str] | None:
    """Return what NaN and infinity come to: no number is no result of the NPU's, and no measure for one."""
    for values, who, outcome in ((npu, _("NPU log"), Outcome.OUTSIDE), (reference, "reference", Outcome.NOT_SHOWN)):
        steps = _not_finite(values)
        if steps:
            return outcome, _("the {who} has no finite number at step {spans}").format(who=who, spans=spans(steps))
    return None


PARITY = "parity"
_REWARD_LIMIT = 4.0
_LOSS_LIMIT = 2.0
"""In percent, as the guide gives them."""
_ANY = float("inf")
_FIRST_STEPS = 4
_FEWEST = 4
"""Steps from which a mean tells: two of any two trainings may be near each other."""
_ROUNDING = 1e-9
"""What floating point makes of a difference that is just at a limit, as a part of it."""
_PARITY_TITLE = _("an NPU beside a GPU")
_PARITY_SOURCE = _("verl's docs/ascend_tutorial/ascend_quick_start.rst at 796871d7")


def judge_parity(npu: TrainingLog, reference: TrainingLog) -> Verdict:
    """Judge the steps that are in both logs."""
    criteria = (
        _mean_error(REWARD, _REWARD_LIMIT, npu, reference),
        _mean_error(LOSS, _LOSS_LIMIT, npu, reference),
        _throughput(npu, reference),
    )
    # A job has a reward or a loss.
    return Verdict(PARITY, _PARITY_TITLE, _PARITY_SOURCE, criteria, needs_all=False)


def _mean_error(metric: Metric, limit: float, npu: TrainingLog, reference: TrainingLog) -> Judged:
    formula = _("mean over all common steps of |NPU - reference| x 100 %, of {metric}").format(metric=metric.name)
    words = _("at most {limit:g} %").format(limit=limit)
    a, b, missing = _common(metric, npu, reference)
    if missing:
        return Judged(metric.title, formula, words, Outcome.NOT_SHOWN, why=missing)
    unusable = _outside_of_numbers(a, b)
    if unusable:
        return Judged(metric.title, formula, words, unusable[0], steps=tuple(a), why=unusable[1])
    error = mean([abs(a[step] - b[step]) for step in a]) * 100
    outcome = Outcome.WITHIN if _is_within(error, -_ANY, limit) else Outcome.OUTSIDE
    why = ""
    if len(a) < _FEWEST:
        outcome, why = Outcome.NOT_SHOWN, _too_few(len(a), _FEWEST)
    means = mean(a.values()), mean(b.values())
    return Judged(metric.title, formula, words, outcome, *means, error, "%", tuple(a), why)


def _throughput(npu: TrainingLog, reference: TrainingLog) -> Judged:
    name = THROUGHPUT.name
    formula = _("NPU / reference, each the mean of {name} over the first {first_steps} common steps").format(
        name=name, first_steps=_FIRST_STEPS
    )
    a, b, missing = _common(THROUGHPUT, npu, reference)
    a, b = (dict(list(each.items())[:_FIRST_STEPS]) for each in (a, b))
    if npu.simulated or reference.simulated:
        missing = _("SIMULATED: virtual NPUs do not show it")
    if not missing and len(a) < _FIRST_STEPS:
        missing = _too_few(len(a), _FIRST_STEPS)
    if not missing and (_not_finite(a) or _not_finite(b)):
        missing = _("not all of its first values are finite numbers")
    if not missing and mean(b.values()) == 0:
        missing = _("the reference's is 0")
    if missing:
        return Judged("throughput", formula, _NO_LIMIT, Outcome.NOT_SHOWN, why=missing)
    means = mean(a.values()), mean(b.values())
    return Judged("throughput", formula, _NO_LIMIT, Outcome.NO_LIMIT, *means, means[0] / means[1], "", tuple(a))


def _too_few(found: int, needed: int) -> str:
    return ngettext(
        "only {count} step has it in both logs, and {needed} are needed",
        "only {count} steps have it in both logs, and {needed} are needed",
        found,
    ).format(count=found, needed=needed)


def _is_within(value: float, least: float, most: float) -> bool:
    return least - abs(least) * _ROUNDING <= value <= most + abs(most) * _ROUNDING


def _common(
    metric: Metric, npu: TrainingLog, reference: TrainingLog
) -> tuple[dict[int, float], dict[int, float], str]:
    """Return a metric of both logs at the steps that have it in both, and why there are none."""
    a, b = metric.of(npu), metric.of(reference)
    steps = [step for step in a if step in b]
    lacking = [who for who, values in ((_("the NPU log"), a), (_("the reference"), b)) if not values]
    missing = ""
    if lacking:
        missing = ngettext("{lacking} has no {metric}", "{lacking} have no {metric}", len(lacking)).format(
            lacking=_(" and ").join(lacking), metric=metric.name
        )
    elif not steps:
        missing = _("no step has it in both logs")
    return {step: a[step] for step in steps}, {step: b[step] for step in steps}, missing


REGRESSION = "regression"
_WINDOW = range(5, 15)
_REGRESSION_TITLE = _("an NPU beside an earlier run on NPUs")
_REGRESSION_SOURCE = _("baseline/check_npu.py of verl-project/verl-ascend-recipe at 20e526a5")


# The script takes this name alone.
_STEP_SECONDS = Metric(_("step time"), ("timing_s/step",))


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


_MEMORY = _Rule("memory", MEMORY, attrgetter("memory"), _("at most 1 GB more"), -_ANY, 1, False, True)
_MEANS = (
    _Rule("throughput", THROUGHPUT, attrgetter("throughput"), _("at most 5 % less"), -5, _ANY, True, True),
    _Rule(_("step time"), _STEP_SECONDS, attrgetter("step_seconds"), _("at most 5 % more"), -_ANY, 5, True, True),
    _Rule("reward", REWARD, attrgetter("reward"), "within 0.05", -0.05, 0.05, False, False),
    _Rule(_("rollout drift"), DRIFT, attrgetter("drift"), "within 5 %", -5, 5, True, False),
)


def judge_regression(npu: TrainingLog, reference: TrainingLog | Baseline) -> Verdict:
    """Judge a log by another one, at the steps that both have, or by published figures."""
    criteria = (_memory(npu, reference), *(_mean(rule, npu, reference) for rule in _MEANS))
    # The script ends with an error where one of its metrics is missing.
    return Verdict(REGRESSION, _REGRESSION_TITLE, _REGRESSION_SOURCE, criteria, needs_all=True)


def _memory(npu: TrainingLog, reference: TrainingLog | Baseline) -> Judged:
    a = _last(MEMORY.of(npu))
    b = {0: reference.memory} if isinstance(reference, Baseline) else _last(MEMORY.of(reference))
    lacks = _("the reference has no {memory}") if a else _("the NPU log has no {memory}")
    missing = "" if a and b else lacks.format(memory=MEMORY.name)
    missing = _not_a_machines(_MEMORY, npu, reference) or missing
    return _judged(
        _MEMORY, _("NPU - reference, each at its last step, of {memory}").format(memory=MEMORY.name), a, b, missing
    )


def _last(values: dict[int, float]) -> dict[int, float]:
    return dict(list(values.items())[-1:])


def _mean(rule: _Rule, npu: TrainingLog, reference: TrainingLog | Baseline) -> Judged:
    if isinstance(reference, Baseline):
        a = rule.metric.of(npu)
        b = dict.fromkeys(a, rule.published(reference))
        missing = "" if a else _("the NPU log has no {metric}").format(metric=rule.metric.name)
    else:
        a, b, missing = _common(rule.metric, npu, reference)
    a, b = ({step: value for step, value in each.items() if step in _WINDOW} for each in (a, b))
    missing = _not_a_machines(rule, npu, reference) or missing
    if not missing and not a:
        missing = _("no step from {window} to {window__window} has it").format(
            window=_WINDOW[0], window__window=_WINDOW[-1]
        )
    change = _("(NPU - reference) / reference x 100 %") if rule.relative else "NPU - reference"
    formula = _("{change}, of the means over steps {window} to {window__window}, of {metric}").format(
        change=change, window=_WINDOW[0], window__window=_WINDOW[-1], metric=rule.metric.name
    )
    return _judged(rule, formula, a, b, missing)


def _not_a_machines(rule: _Rule, npu: TrainingLog, reference: TrainingLog | Baseline) -> str:
    simulated = npu.simulated or (isinstance(reference, TrainingLog) and reference.simulated)
    return _("SIMULATED: virtual NPUs do not show it") if rule.of_the_machine and simulated else ""


def _judged(rule: _Rule, formula: str, a: dict[int, float], b: dict[int, float], missing: str) -> Judged:
    unusable = None if missing else _outside_of_numbers(a, b)
    if not missing and not unusable and rule.relative and mean(b.values()) == 0:
        missing = _("the reference's is 0, and the change is relative to it")
    if missing:
        return Judged(rule.title, formula, rule.limit, Outcome.NOT_SHOWN, why=missing)
    if unusable:
        return Judged(rule.title, formula, rule.limit, unusable[0], steps=tuple(a), why=unusable[1])
    npu, reference = mean(a.values()), mean(b.values())
    value = (npu - reference) / reference * 100 if rule.relative else npu - reference
    outcome = Outcome.WITHIN if _is_within(value, rule.least, rule.most) else Outcome.OUTSIDE
    unit = "%" if rule.relative else ""
    return Judged(rule.title, formula, rule.limit, outcome, npu, reference, value, unit, tuple(a))
