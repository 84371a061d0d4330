"""The two standards for a training run on NPUs, parity and regression, and the published figures for regression.

Parity compares an NPU with a GPU at the same settings, as verl's guide for Ascend asks
(docs/ascend_tutorial/ascend_quick_start.rst at 796871d7, sections on precision and on throughput). Its formula is in
the image docs/loss_comparison.png of eric-haibin-lin/verl-community: the sum over N steps of |npu - gpu|, divided by
N, times 100 %. The sum is not divided by the loss or the reward: 4 % is a mean difference of 0.04.

Regression compares an NPU with an earlier run on the same NPUs, as baseline/check_npu.py of
verl-project/verl-ascend-recipe does at 20e526a5: by the memory at the last step, and by means over steps 5 to 14. Less
memory, higher throughput, and shorter steps are always accepted. The previous version of the script, 2a3edec0,
rejected them.
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
    """Published metrics of one job on real NPUs. They apply only to that job's script and hardware."""

    name: str
    script: str
    hardware: str
    memory: float
    """GiB, `actor/perf/max_memory_allocated_gb` of the last step."""
    step_seconds: float
    throughput: float
    """Tokens per second and NPU."""
    reward: float
    drift: float
    """`training/rollout_probs_diff_mean`."""


_PUBLISHED = json.loads(Path(__file__).with_name("baselines.json").read_text())
SOURCE: str = _PUBLISHED["source"]
BASELINES = {each["name"]: Baseline(**each) for each in _PUBLISHED["baselines"]}
"""The published baselines, by name. Upstream has a text file for each job; the file is named after the job's
script."""


_NO_LIMIT = "none"


class Outcome(Enum):
    """The outcome of a criterion or of a standard."""

    WITHIN = _("within")
    OUTSIDE = _("outside")
    NOT_SHOWN = _("not shown")
    """The logs do not show this criterion, so it counts neither as passed nor as failed."""
    NO_LIMIT = _("no limit")
    """The criterion was measured, but the standard sets no limit for it."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One criterion and its measurement."""

    name: str
    formula: str
    limit: str
    outcome: Outcome
    npu: float | None = None
    """The figure of the NPU log."""
    reference: float | None = None
    value: float | None = None
    """The result of the criterion's formula."""
    unit: str = ""
    steps: tuple[int, ...] = ()
    why: str = ""
    """The reason why the criterion is not shown, or why it is outside although it has no value."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of one standard: the outcomes of its criteria."""

    name: str
    title: str
    source: str
    criteria: tuple[Judged, ...]
    needs_all: bool
    """True if the standard is met only when every criterion is shown. Otherwise one shown criterion is enough."""

    @property
    def shown(self) -> str:
        """A phrase that states how many of the criteria that have a limit were evaluated."""
        limited = [judged for judged in self.criteria if judged.limit != _NO_LIMIT]
        shown = sum(judged.outcome in (Outcome.WITHIN, Outcome.OUTSIDE) for judged in limited)
        return _("{shown} of {count} criteria shown").format(shown=shown, count=len(limited))

    @property
    def outcome(self) -> Outcome:
        """OUTSIDE if any criterion is outside its limit, WITHIN if enough criteria are within their limits, otherwise
        NOT_SHOWN."""
        found = {judged.outcome for judged in self.criteria}
        if Outcome.OUTSIDE in found:
            return Outcome.OUTSIDE
        lacking = Outcome.WITHIN not in found or (self.needs_all and Outcome.NOT_SHOWN in found)
        return Outcome.NOT_SHOWN if lacking else Outcome.WITHIN


def _not_finite(values: Mapping[int, float]) -> tuple[int, ...]:
    """Return the steps whose value is NaN or infinite."""
    return tuple(step for step, value in values.items() if not -float("inf") < value < float("inf"))


def _judge_not_finite(npu: Mapping[int, float], reference: Mapping[int, float]) -> tuple[Outcome, str] | None:
    """Evaluate NaN and infinity. In the NPU's log, they make the outcome OUTSIDE. If only the reference has them, the
    outcome is NOT_SHOWN."""
    for values, who, outcome in ((npu, _("NPU log"), Outcome.OUTSIDE), (reference, "reference", Outcome.NOT_SHOWN)):
        steps = _not_finite(values)
        if steps:
            return outcome, _("the {who} has no finite number at step {spans}").format(who=who, spans=spans(steps))
    return None


PARITY = "parity"
_REWARD_LIMIT = 4.0
_LOSS_LIMIT = 2.0
"""The limit for the loss in verl's guide, in percent."""
_ANY = float("inf")
_FIRST_STEPS = 4
_FEWEST = 4
"""The fewest steps for a mean. Over fewer steps, any two training runs may agree by chance."""
_ROUNDING = 1e-9
"""The relative rounding error that is allowed at a limit."""
_PARITY_TITLE = _("an NPU compared with a GPU")
_PARITY_SOURCE = _("verl's docs/ascend_tutorial/ascend_quick_start.rst at 796871d7")


def judge_parity(npu: TrainingLog, reference: TrainingLog) -> Verdict:
    """Evaluate the standard `parity` at the steps that both logs contain."""
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
    unusable = _judge_not_finite(a, b)
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
        missing = _("SIMULATED: virtual NPUs do not show this criterion")
    if not missing and len(a) < _FIRST_STEPS:
        missing = _too_few(len(a), _FIRST_STEPS)
    if not missing and (_not_finite(a) or _not_finite(b)):
        missing = _("some of the first values are not finite numbers")
    if not missing and mean(b.values()) == 0:
        missing = _("the reference has 0")
    if missing:
        return Judged("throughput", formula, _NO_LIMIT, Outcome.NOT_SHOWN, why=missing)
    means = mean(a.values()), mean(b.values())
    return Judged("throughput", formula, _NO_LIMIT, Outcome.NO_LIMIT, *means, means[0] / means[1], "", tuple(a))


def _too_few(found: int, needed: int) -> str:
    return ngettext(
        "both logs have this metric at only {count} step, but {needed} steps are needed",
        "both logs have this metric at only {count} steps, but {needed} steps are needed",
        found,
    ).format(count=found, needed=needed)


def _is_within(value: float, least: float, most: float) -> bool:
    return least - abs(least) * _ROUNDING <= value <= most + abs(most) * _ROUNDING


def _common(
    metric: Metric, npu: TrainingLog, reference: TrainingLog
) -> tuple[dict[int, float], dict[int, float], str]:
    """Return a metric of both logs at the steps where both have it, or the reason why there are no such steps."""
    a, b = metric.of(npu), metric.of(reference)
    steps = [step for step in a if step in b]
    lacking = [who for who, values in ((_("the NPU log"), a), (_("the reference"), b)) if not values]
    missing = ""
    if lacking:
        missing = ngettext("{lacking} has no {metric}", "{lacking} have no {metric}", len(lacking)).format(
            lacking=_(" and ").join(lacking), metric=metric.name
        )
    elif not steps:
        missing = _("the logs have this metric at no common step")
    return {step: a[step] for step in steps}, {step: b[step] for step in steps}, missing


REGRESSION = "regression"
_WINDOW = range(5, 15)
_REGRESSION_TITLE = _("an NPU compared with an earlier run on NPUs")
_REGRESSION_SOURCE = _("baseline/check_npu.py of verl-project/verl-ascend-recipe at 20e526a5")


# The script uses only this name.
_STEP_SECONDS = Metric(_("step time"), ("timing_s/step",))


@dataclass(frozen=True, slots=True)
class _Rule:
    title: str
    metric: Metric
    published: Callable[[Baseline], float]
    limit: str
    least: float
    most: float
    """The upper bound of the change. The change is the NPU's figure minus the reference's."""
    relative: bool
    """True if the change is a percentage of the reference."""
    needs_npu: bool
    """True for speed and memory, which virtual NPUs do not show."""


_MEMORY = _Rule("memory", MEMORY, attrgetter("memory"), _("at most 1 GB more"), -_ANY, 1, False, True)
_MEANS = (
    _Rule("throughput", THROUGHPUT, attrgetter("throughput"), _("at most 5 % less"), -5, _ANY, True, True),
    _Rule(_("step time"), _STEP_SECONDS, attrgetter("step_seconds"), _("at most 5 % more"), -_ANY, 5, True, True),
    _Rule("reward", REWARD, attrgetter("reward"), "within 0.05", -0.05, 0.05, False, False),
    _Rule(_("rollout drift"), DRIFT, attrgetter("drift"), "within 5 %", -5, 5, True, False),
)


def judge_regression(npu: TrainingLog, reference: TrainingLog | Baseline) -> Verdict:
    """Evaluate the standard `regression`: compare a log with another log, at the steps that both contain, or with
    published figures."""
    criteria = (_memory(npu, reference), *(_mean(rule, npu, reference) for rule in _MEANS))
    # The script fails if one of its metrics is missing.
    return Verdict(REGRESSION, _REGRESSION_TITLE, _REGRESSION_SOURCE, criteria, needs_all=True)


def _memory(npu: TrainingLog, reference: TrainingLog | Baseline) -> Judged:
    a = _last(MEMORY.of(npu))
    b = {0: reference.memory} if isinstance(reference, Baseline) else _last(MEMORY.of(reference))
    lacks = _("the reference has no {memory}") if a else _("the NPU log has no {memory}")
    missing = "" if a and b else lacks.format(memory=MEMORY.name)
    missing = _why_not_simulated(_MEMORY, npu, reference) or missing
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
    missing = _why_not_simulated(rule, npu, reference) or missing
    if not missing and not a:
        missing = _("the log has this metric at no step from {window} to {window__window}").format(
            window=_WINDOW[0], window__window=_WINDOW[-1]
        )
    change = _("(NPU - reference) / reference x 100 %") if rule.relative else "NPU - reference"
    formula = _("{change}, of the means over steps {window} to {window__window}, of {metric}").format(
        change=change, window=_WINDOW[0], window__window=_WINDOW[-1], metric=rule.metric.name
    )
    return _judged(rule, formula, a, b, missing)


def _why_not_simulated(rule: _Rule, npu: TrainingLog, reference: TrainingLog | Baseline) -> str:
    simulated = npu.simulated or (isinstance(reference, TrainingLog) and reference.simulated)
    return _("SIMULATED: virtual NPUs do not show this criterion") if rule.needs_npu and simulated else ""


def _judged(rule: _Rule, formula: str, a: dict[int, float], b: dict[int, float], missing: str) -> Judged:
    unusable = None if missing else _judge_not_finite(a, b)
    if not missing and not unusable and rule.relative and mean(b.values()) == 0:
        missing = _("the reference has 0, so a relative change cannot be computed")
    if missing:
        return Judged(rule.title, formula, rule.limit, Outcome.NOT_SHOWN, why=missing)
    if unusable:
        return Judged(rule.title, formula, rule.limit, unusable[0], steps=tuple(a), why=unusable[1])
    npu, reference = mean(a.values()), mean(b.values())
    value = (npu - reference) / reference * 100 if rule.relative else npu - reference
    outcome = Outcome.WITHIN if _is_within(value, rule.least, rule.most) else Outcome.OUTSIDE
    unit = "%" if rule.relative else ""
    return Judged(rule.title, formula, rule.limit, outcome, npu, reference, value, unit, tuple(a))
