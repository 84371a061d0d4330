"""Judges whether each phase of a plan fits into its NPUs' memory, and sums up the memory of its machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from verl_npu.language import gettext as _

from ..jobs.keys import is_partly_on_host
from .hardware import Reserve, reserve_of
from .job import Holder, Phase, PhaseCost
from .planning import Planned
from .rollout import Rollout

FIGURE = "perf/max_memory_allocated_gb"
"""The memory that verl reports."""


class Fit(Enum):
    """The result for a phase or for a whole plan."""

    FITS = "fits"
    DOES_NOT = _("does not fit")
    MAY_NOT = _("may not fit")
    FAILED = "failed"

    @property
    def lacks(self) -> bool:
        """Whether the plan needs more memory than an NPU has."""
        return self in (Fit.DOES_NOT, Fit.MAY_NOT)


@dataclass(frozen=True, slots=True)
class PhaseFit:
    """The memory use of one phase, in bytes, on the rank that needs the most memory in this phase."""

    phase: str
    rank: int
    tensors: int
    """The tensors of the trainer's process."""
    needed: int
    """All memory that is needed on the NPU, including the reserve and other processes."""
    fit: Fit
    holders: Mapping[str, int]
    """The needed memory by holder."""
    cost: PhaseCost | None

    @property
    def held(self) -> int:
        """The memory that is needed in addition to the reserve: tensors and, during the rollout, the engine."""
        return self.needed - self.holders.get(Holder.RESERVE.value, 0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a plan."""

    fit: Fit
    phases: tuple[PhaseFit, ...]
    reserve: tuple[Reserve, ...]
    capacity: int

    @property
    def worst(self) -> PhaseFit:
        """The phase that needs the most memory."""
        return max(self.phases, key=lambda phase: phase.needed)


def judge(planned: Planned) -> Verdict:
    """Compare the memory that each phase needs with the memory of an NPU."""
    capacity = int(planned.hardware.memory.value)
    # The checkpoint engine has a group of its own, outside torch.
    engine = 1 if planned.rollout and planned.rollout.bucket else 0
    groups = max(outcome.groups for outcome in planned.outcomes) + engine
    peak = max((cost.peak for outcome in planned.outcomes for cost in outcome.phases), default=0)
    reserve = reserve_of(groups, peak, planned.trainer.exports)
    phases = [_phase_fit(phase, planned, groups, capacity) for phase in Phase]
    found = [phase for phase in phases if phase is not None]
    if any(outcome.error for outcome in planned.outcomes):
        fit = Fit.FAILED
    else:
        failing = [phase for phase in found if phase.fit is Fit.DOES_NOT]
        # The plan does not know how much of the optimizer is on the host.
        may = is_partly_on_host(planned.settings) and all(
            max(phase.needed - capacity, 1) <= phase.holders.get(Holder.OPTIMIZER.value, 0) for phase in failing
        )
        fit = (Fit.MAY_NOT if may else Fit.DOES_NOT) if failing else Fit.FITS
    return Verdict(fit, tuple(found), reserve, capacity)


def allocated(planned: Planned) -> dict[str, int]:
    """Return the two parts of what verl reports as perf/max_memory_allocated_gb: the bytes of the trainer's tensors,
    and the bytes of an engine in the same process.

    verl reports torch's peak-memory counter of the last rank, and never resets the counter. The counter includes the
    weights and the cache of a sleeping engine. It does not include the memory for saving a checkpoint, because verl
    saves the checkpoint after it has reported the counter.
    """
    last = max(planned.outcomes, key=lambda outcome: outcome.rank)
    phases = [cost for cost in last.phases if cost.phase != Phase.CHECKPOINT.value]
    peak = max((cost.peak - cost.holders.get(Holder.ENGINE.value, 0) for cost in phases), default=0)
    engine = planned.rollout.needed - planned.rollout.buffers if planned.rollout and planned.inside else 0
    return {"trainer": peak, "engine": engine}


def host_peaks(planned: Planned) -> dict[str, int]:
    """Return, for each phase, the bytes that large tensors take in a machine's host memory if all ranks of the machine
    reach their peaks at the same time.

    During loading, one rank reads the whole model, and the other ranks receive only their shares. If weights are tied,
    every rank reads the whole model. Source: verl/utils/fsdp_utils.py, `get_init_weight_context_manager`.
    """
    local, found = planned.share.local, {}
    for phase in Phase:
        costs = [cost for outcome in planned.outcomes for cost in outcome.phases if cost.phase == phase.value]
        if not costs:
            continue
        most = max(cost.host for cost in costs)
        alone = phase is Phase.LOAD and not planned.model.tied
        others = max(cost.host_after for cost in costs) if alone else most
        found[phase.value] = most + (local - 1) * others
    return found


def _phase_fit(phase: Phase, planned: Planned, groups: int, capacity: int) -> PhaseFit | None:
    if phase is Phase.ROLLOUT:
        return _rollout_fit(planned.rollout, planned, groups, capacity) if planned.rollout else None
    if phase in (Phase.SERVERS, Phase.SERVERS_SYNC):
        return _servers_fit(phase, planned.rollout, planned, capacity) if planned.rollout else None
    outcomes = planned.outcomes
    costs = [(cost, outcome.rank) for outcome in outcomes for cost in outcome.phases if cost.phase == phase.value]
    if not costs:
        return None
    cost, rank = max(costs, key=lambda each: each[0].peak)
    reserved = _reserved(groups, cost.peak, planned)
    needed = cost.peak + reserved
    holders = {**cost.holders, Holder.RESERVE.value: reserved}
    fit = Fit.FITS if needed <= capacity else Fit.DOES_NOT
    return PhaseFit(phase.value, rank, cost.peak, needed, fit, holders, cost)


def _rollout_fit(rollout: Rollout, planned: Planned, groups: int, capacity: int) -> PhaseFit:
    """Judge the rollout: the engine together with the memory that the trainer still holds after the actor's update."""
    kept, held = 0, Counter({Holder.RESERVE.value: 0})
    if not rollout.own_npus:
        after = [cost for each in planned.outcomes for cost in each.phases if cost.phase == Phase.UPDATE_ACTOR.value]
        if after:
            most = max(after, key=lambda cost: cost.after)
            kept = most.after
            held.update(most.kept)
        held[Holder.RESERVE.value] = _reserved(groups, kept, planned)
    needed = rollout.needed + kept + held[Holder.RESERVE.value]
    held[Holder.ENGINE.value] += rollout.engine_weights
    held[Holder.ACTIVATIONS.value] += rollout.buffers
    held[Holder.CACHE.value] += rollout.needed - rollout.engine_weights - rollout.buffers
    fits = needed <= capacity and rollout.sequences > 0
    return PhaseFit(Phase.ROLLOUT.value, 0, kept, needed, Fit.FITS if fits else Fit.DOES_NOT, dict(held), None)


def _servers_fit(phase: Phase, rollout: Rollout, planned: Planned, capacity: int) -> PhaseFit | None:
    """Judge the engine on an NPU that only runs a server. None if the rollout phase already covers it."""
    syncs = phase is Phase.SERVERS_SYNC
    if not (rollout.bucket if syncs else rollout.servers and not rollout.own_npus):
        return None
    engine, buckets = rollout.engine_weights + rollout.buffers, rollout.buckets_of_server if syncs else 0
    held = {
        Holder.ENGINE.value: rollout.engine_weights,
        Holder.ACTIVATIONS.value: rollout.buffers,
        Holder.CACHE.value: 0 if syncs and rollout.sleeps else rollout.needed - engine,
        Holder.MESSAGES.value: buckets,
        Holder.RESERVE.value: _reserved(1, buckets, planned) if syncs else 0,
    }
    needed = sum(held.values())
    fits = needed <= capacity and rollout.sequences > 0
    return PhaseFit(phase.value, 0, 0, needed, Fit.FITS if fits else Fit.DOES_NOT, held, None)


def _reserved(groups: int, tensors: int, planned: Planned) -> int:
    return sum(each.size for each in reserve_of(groups, tensors, planned.trainer.exports))
