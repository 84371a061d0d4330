"""What came of one criterion, and of all that belong together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ..training_log.log import spans

__all__ = ["NO_LIMIT", "Judged", "Outcome", "Verdict", "not_finite", "outside_of_numbers"]


NO_LIMIT = "none"


class Outcome(Enum):
    """What a criterion, or a standard, came to."""

    WITHIN = "within"
    OUTSIDE = "outside"
    NOT_SHOWN = "not shown"
    """The logs do not say, so it counts neither way."""
    NO_LIMIT = "no limit"
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
        limited = [judged for judged in self.criteria if judged.limit != NO_LIMIT]
        shown = sum(judged.outcome in (Outcome.WITHIN, Outcome.OUTSIDE) for judged in limited)
        return f"{shown} of {len(limited)} criteria shown"

    @property
    def outcome(self) -> Outcome:
        """Outside if one criterion is; within if as many as the standard needs are; else not shown."""
        found = {judged.outcome for judged in self.criteria}
        if Outcome.OUTSIDE in found:
            return Outcome.OUTSIDE
        lacking = Outcome.WITHIN not in found or (self.needs_all and Outcome.NOT_SHOWN in found)
        return Outcome.NOT_SHOWN if lacking else Outcome.WITHIN


def not_finite(values: Mapping[int, float]) -> tuple[int, ...]:
    """Return the steps at which a value is NaN or infinite."""
    return tuple(step for step, value in values.items() if not -float("inf") < value < float("inf"))


def outside_of_numbers(npu: Mapping[int, float], reference: Mapping[int, float]) -> tuple[Outcome, str] | None:
    """Return what NaN and infinity come to: no number is no result of the NPU's, and no measure for one."""
    for values, who, outcome in ((npu, "NPU log", Outcome.OUTSIDE), (reference, "reference", Outcome.NOT_SHOWN)):
        steps = not_finite(values)
        if steps:
            return outcome, f"the {who} has no finite number at step {spans(steps)}"
    return None
