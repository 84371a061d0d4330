"""One comparison: both sides, what each standard says of them, and their metrics side by side."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ..training_log.log import TrainingLog
from ..training_log.metrics import SHOWN, Metric
from ..training_log.numbers import mean
from . import parity, regression
from .baselines import Baseline
from .criterion import Outcome, Verdict

__all__ = ["STANDARDS", "Comparison", "Pair", "compare"]

STANDARDS = (parity.NAME, regression.NAME)


@dataclass(frozen=True, slots=True)
class Pair:
    """One metric of both logs at the steps that they share."""

    metric: Metric
    npu: dict[int, float]
    """At all of the log's steps."""
    reference: dict[int, float]

    @property
    def common(self) -> list[int]:
        """The steps that have it in both."""
        return [step for step in self.npu if step in self.reference]

    @property
    def mean_difference(self) -> float:
        """The mean of |NPU - reference| over the common steps; NaN where one of them is."""
        return mean([abs(self.npu[step] - self.reference[step]) for step in self.common])

    @property
    def largest(self) -> int:
        """The step at which they differ most: the first without a number, if there is one."""
        return max(self.common, key=lambda step: _order(abs(self.npu[step] - self.reference[step])))


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was compared, and what came of it."""

    npu: TrainingLog
    reference: TrainingLog | Baseline
    verdicts: tuple[Verdict, ...]
    judged_by: tuple[str, ...]
    """The standards that the outcome is of; what others say is for information."""
    pairs: tuple[Pair, ...]

    @property
    def outcome(self) -> Outcome:
        """Outside if one of the standards is, within if all are, else not shown."""
        found = {verdict.outcome for verdict in self.verdicts if verdict.name in self.judged_by}
        if Outcome.OUTSIDE in found:
            return Outcome.OUTSIDE
        return Outcome.WITHIN if found == {Outcome.WITHIN} else Outcome.NOT_SHOWN

    @property
    def simulated(self) -> bool:
        """Whether one of the logs says that its NPUs were virtual."""
        return any(isinstance(side, TrainingLog) and side.simulated for side in (self.npu, self.reference))

    @property
    def common(self) -> list[int]:
        """The steps that are in both logs."""
        if isinstance(self.reference, Baseline):
            return []
        return [step for step in self.npu.steps if step in self.reference.steps]


def compare(npu: TrainingLog, reference: TrainingLog | Baseline, judged_by: Collection[str]) -> Comparison:
    """Compare a log with another one, or with published figures, which no standard for single steps can judge by."""
    if isinstance(reference, Baseline):
        return Comparison(npu, reference, (regression.judge(npu, reference),), tuple(judged_by), ())
    verdicts = (parity.judge(npu, reference), regression.judge(npu, reference))
    pairs = tuple(Pair(metric, metric.of(npu), metric.of(reference)) for metric in SHOWN)
    return Comparison(npu, reference, verdicts, tuple(judged_by), tuple(pair for pair in pairs if pair.common))


def _order(difference: float) -> float:
    return float("inf") if difference != difference else difference
