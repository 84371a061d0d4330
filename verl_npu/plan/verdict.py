"""Whether a plan fits into its NPUs' memory, phase by phase."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .job import Outcome, PhaseCost
from .phase import Phase
from .planning import Planned
from .reserve import Reserve, reserve_of

__all__ = ["Fit", "PhaseFit", "Verdict", "judge"]


class Fit(Enum):
    """What can be said of a phase, or of a whole plan."""

    FITS = "fits"
    DOES_NOT = "does not fit"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PhaseFit:
    """One phase on the rank that needs most for it. Bytes."""

    phase: str
    rank: int
    tensors: int
    needed: int
    """With the reserve, and what others have on the same NPU."""
    fit: Fit
    cost: PhaseCost | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a plan comes to."""

    fit: Fit
    phases: tuple[PhaseFit, ...]
    reserve: tuple[Reserve, ...]
    capacity: int

    @property
    def worst(self) -> PhaseFit:
        """The phase that needs most."""
        return max(self.phases, key=lambda phase: phase.needed)


def judge(planned: Planned) -> Verdict:
    """Compare each phase with the memory of an NPU."""
    capacity = int(planned.hardware.memory.value)
    groups = max(outcome.groups for outcome in planned.outcomes)
    peak = max((cost.peak for outcome in planned.outcomes for cost in outcome.phases), default=0)
    reserve = reserve_of(groups, peak, planned.trainer.exports)
    phases = [_of_phase(phase, planned.outcomes, groups, planned, capacity) for phase in Phase]
    found = [phase for phase in phases if phase is not None]
    if any(outcome.error for outcome in planned.outcomes):
        fit = Fit.FAILED
    else:
        fit = Fit.DOES_NOT if any(phase.fit is Fit.DOES_NOT for phase in found) else Fit.FITS
    return Verdict(fit, tuple(found), reserve, capacity)


def _of_phase(
    phase: Phase, outcomes: tuple[Outcome, ...], groups: int, planned: Planned, capacity: int
) -> PhaseFit | None:
    if phase is Phase.ROLLOUT:
        return _of_rollout(outcomes, groups, planned, capacity)
    costs = [(cost, outcome.rank) for outcome in outcomes for cost in outcome.phases if cost.phase == phase.value]
    if not costs:
        return None
    cost, rank = max(costs, key=lambda each: each[0].peak)
    needed = cost.peak + _reserved(groups, cost.peak, planned)
    return PhaseFit(phase.value, rank, cost.peak, needed, Fit.FITS if needed <= capacity else Fit.DOES_NOT, cost)


def _of_rollout(outcomes: tuple[Outcome, ...], groups: int, planned: Planned, capacity: int) -> PhaseFit:
    """The engine beside what the trainer keeps meanwhile: what it had left after the weights were handed over."""
    kept = reserved = 0
    if not planned.rollout.alone:
        kept = max(
            (cost.after for outcome in outcomes for cost in outcome.phases if cost.phase == Phase.UPDATE_ACTOR.value),
            default=0,
        )
        reserved = _reserved(groups, kept, planned)
    needed = planned.rollout.needed + kept + reserved
    fits = needed <= capacity and planned.rollout.sequences > 0
    return PhaseFit(Phase.ROLLOUT.value, 0, kept, needed, Fit.FITS if fits else Fit.DOES_NOT, None)


def _reserved(groups: int, tensors: int, planned: Planned) -> int:
    return sum(each.size for each in reserve_of(groups, tensors, planned.trainer.exports))
