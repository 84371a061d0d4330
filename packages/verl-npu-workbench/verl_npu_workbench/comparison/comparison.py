"""A comparison of two training runs: the verdict of each standard, the metrics side by side, and the JSON
representation."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass

from ..logs.metrics import SHOWN, Metric, mean, plain
from ..logs.training import TrainingLog
from . import standards
from .standards import Baseline, Judged, Outcome, Verdict

STANDARDS = (standards.PARITY, standards.REGRESSION)


@dataclass(frozen=True, slots=True)
class Pair:
    """The values of one metric in both logs, at the steps that both logs have."""

    metric: Metric
    npu: dict[int, float]
    """The values at all steps of the NPU's log."""
    reference: dict[int, float]

    @property
    def common(self) -> list[int]:
        """The steps at which both logs have the metric."""
        return [step for step in self.npu if step in self.reference]

    @property
    def means(self) -> tuple[float, float]:
        """The means of the NPU log and of the reference log over the common steps."""
        return mean([self.npu[step] for step in self.common]), mean([self.reference[step] for step in self.common])

    @property
    def mean_difference(self) -> float:
        """The mean of |NPU - reference| over the common steps, or NaN if a value is NaN."""
        return mean([abs(self.npu[step] - self.reference[step]) for step in self.common])

    @property
    def largest(self) -> int:
        """The step with the largest difference. A difference of NaN counts as the largest."""
        return max(self.common, key=lambda step: _order(abs(self.npu[step] - self.reference[step])))


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing two training runs."""

    npu: TrainingLog
    reference: TrainingLog | Baseline
    verdicts: tuple[Verdict, ...]
    judged_by: tuple[str, ...]
    """The standards that decide the outcome. All other standards are only shown for information."""
    pairs: tuple[Pair, ...]

    @property
    def outcome(self) -> Outcome:
        """OUTSIDE if the outcome of any deciding standard is OUTSIDE, WITHIN if the outcomes of all deciding
        standards are WITHIN, otherwise NOT_SHOWN."""
        found = {verdict.outcome for verdict in self.verdicts if verdict.name in self.judged_by}
        if Outcome.OUTSIDE in found:
            return Outcome.OUTSIDE
        return Outcome.WITHIN if found == {Outcome.WITHIN} else Outcome.NOT_SHOWN

    @property
    def simulated(self) -> bool:
        """Return whether at least one of the logs says that its NPUs were virtual."""
        return any(isinstance(side, TrainingLog) and side.simulated for side in (self.npu, self.reference))

    @property
    def common(self) -> list[int]:
        """The steps that are in both logs."""
        if isinstance(self.reference, Baseline):
            return []
        return [step for step in self.npu.steps if step in self.reference.steps]


def compare(npu: TrainingLog, reference: TrainingLog | Baseline, judged_by: Collection[str]) -> Comparison:
    """Compare a log with another log or with published figures. Published figures have no steps, so parity cannot be
    evaluated for them."""
    if isinstance(reference, Baseline):
        return Comparison(npu, reference, (standards.judge_regression(npu, reference),), tuple(judged_by), ())
    verdicts = (standards.judge_parity(npu, reference), standards.judge_regression(npu, reference))
    pairs = tuple(Pair(metric, metric.of(npu), metric.of(reference)) for metric in SHOWN)
    return Comparison(npu, reference, verdicts, tuple(judged_by), tuple(pair for pair in pairs if pair.common))


def _order(difference: float) -> float:
    return float("inf") if difference != difference else difference


def content(made: Comparison) -> dict[str, object]:
    """Return a comparison as a JSON-serializable object. NaN and infinities, which JSON does not support, become the
    strings nan, inf, and -inf."""
    return {
        "verdict": made.outcome.value,
        "judged_by": list(made.judged_by),
        "npu": _log(made.npu),
        "reference": dataclasses.asdict(made.reference)
        if isinstance(made.reference, Baseline)
        else _log(made.reference),
        "common_steps": made.common,
        "standards": [_verdict(verdict) for verdict in made.verdicts],
        "metrics": [
            {
                "title": pair.metric.title,
                "names": list(pair.metric.names),
                "steps": pair.common,
                "npu": [plain(pair.npu[step]) for step in pair.common],
                "reference": [plain(pair.reference[step]) for step in pair.common],
                "mean_difference": plain(pair.mean_difference),
                "largest_difference_at": pair.largest,
            }
            for pair in made.pairs
        ],
    }


def _log(log: TrainingLog) -> dict[str, object]:
    return {
        "source": log.source,
        "steps": list(log.steps),
        "restarts": [dataclasses.asdict(restart) for restart in log.restarts],
        "left_over": list(log.left_over),
        "gaps": [list(gap) for gap in log.gaps()],
        "damaged": log.damaged,
        "cut": log.cut,
        "simulated": log.simulated,
        "notes": log.notes(),
    }


def _verdict(verdict: Verdict) -> dict[str, object]:
    return {
        "name": verdict.name,
        "title": verdict.title,
        "source": verdict.source,
        "verdict": verdict.outcome.value,
        "criteria": [_judged(judged) for judged in verdict.criteria],
    }


def _judged(judged: Judged) -> dict[str, object]:
    return {
        "name": judged.name,
        "formula": judged.formula,
        "limit": judged.limit,
        "verdict": judged.outcome.value,
        "npu": plain(judged.npu),
        "reference": plain(judged.reference),
        "value": plain(judged.value),
        "unit": judged.unit,
        "steps": list(judged.steps),
        "why": judged.why,
    }
