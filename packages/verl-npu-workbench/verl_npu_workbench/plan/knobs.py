"""Proposes changes of settings that reduce a plan's memory, the cheapest changes first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from verl_npu import environment
from verl_npu.language import gettext as _

from ..jobs.keys import (
    ACTOR,
    CRITIC,
    FREE_CACHE_ENGINE,
    HOST_FRACTION,
    MODEL,
    NODES,
    NPUS,
    PACKED,
    ROLLOUT,
    ROLLOUT_TENSOR,
    has_critic,
    is_megatron,
    is_partly_on_host,
)
from ..jobs.settings import Settings
from .fine_tuning import MICRO_BATCH, Names, names_of
from .job import Holder, Phase
from .planning import TORCHRUN_NODES, TORCHRUN_RANKS, Planned
from .rollout import BUCKET, Rollout
from .verdict import Fit, PhaseFit, Verdict

_RECOMPUTATION = _("keeps only the input of each layer and computes the activations again")
_SHARING = _("splits a sequence among more NPUs")
_DIVIDING_ALL = _("divides weights, gradients, and the optimizer's state among all NPUs")
_DIVIDING_MORE = _("divides weights, gradients, and the optimizer's state among more NPUs")
_SERVER = 8
"""The number of NPUs in a server. It is the upper limit for scripts that use fewer NPUs per node."""
_STATE = (Holder.WEIGHTS, Holder.GRADIENTS, Holder.OPTIMIZER)
_UTILIZATION_STEP, _LEAST_UTILIZATION, _MOST_UTILIZATION = 0.05, 0.2, 0.9
_OFFLOADS = (
    ("optimizer_offload", _("keeps the optimizer's state on the host between updates")),
    ("param_offload", _("keeps the weights on the host between phases")),
)
_SECTIONS = {
    "actor": (f"{ACTOR}.fsdp_config", f"{ACTOR}.megatron"),
    "critic": ("critic.model.fsdp_config", "critic.fsdp", "critic.megatron"),
}


@dataclass(frozen=True, slots=True)
class Knob:
    """A group of settings that the plan search changes together, with the reason for the change."""

    changes: tuple[tuple[str, object], ...]
    why: str
    npus: int = 0
    """The job's number of NPUs with these changes; 0 if the number does not change."""


def knobs(planned: Planned, verdict: Verdict) -> list[Knob]:
    """Return the knobs that are worth trying next for the phases that do not fit, or an empty list if no knob is left.

    `planned` includes all earlier changes, so a micro batch that was halved before is halved again. Smaller micro
    batches are not tried for a phase whose weights, gradients, and optimizer state alone do not fit.
    """
    failing = [phase for phase in verdict.phases if phase.fit is Fit.DOES_NOT]
    if not failing:
        return []
    if planned.rollout is not None:
        return list(dict.fromkeys(_reinforcement_knobs(planned, planned.rollout, verdict, failing)))
    names = names_of(planned.trainer, planned.settings)
    return list(dict.fromkeys(_fine_tuning_knobs(planned, names, verdict, failing))) if names else []


def _reinforcement_knobs(
    planned: Planned, rollout: Rollout, verdict: Verdict, failing: Sequence[PhaseFit]
) -> Iterator[Knob]:
    if is_partly_on_host(planned.settings) and any(fit.holders.get(Holder.OPTIMIZER.value) for fit in failing):
        yield Knob(((HOST_FRACTION, 1.0),), _("runs all of the optimizer on the host"))
    for fit in failing:
        phase = Phase(fit.phase)
        if phase in (Phase.ROLLOUT, Phase.SERVERS):
            yield from _rollout_knobs(rollout, verdict, fit)
        if phase in (Phase.WEIGHT_SYNC, Phase.SERVERS_SYNC):
            yield from _smaller_buckets(planned, rollout)
        if fit.cost and _room(fit, verdict) > 0:
            yield from _fewer_activations(planned, fit, verdict)
        if fit.cost or phase is Phase.ROLLOUT:
            yield from _offloads(planned.settings, phase)
        no_room = phase in (Phase.ROLLOUT, Phase.SERVERS) and _has_no_room(rollout, verdict, fit)
        if phase in (Phase.WEIGHT_SYNC, Phase.SERVERS_SYNC) or no_room:
            yield from _more_tensor(planned, rollout)
    if any(_room(fit, verdict) > 0 for fit in failing if fit.cost):
        yield from _more_ulysses(planned)
    divided = [fit for fit in failing if fit.tensors]
    if divided:
        yield from _more_npus(planned, max(_times(fit, verdict) for fit in divided))


def _fine_tuning_knobs(
    planned: Planned, names: Names, verdict: Verdict, failing: Sequence[PhaseFit]
) -> Iterator[Knob]:
    settings = planned.settings
    roomy = [fit for fit in failing if _room(fit, verdict) > 0]
    for fit in roomy:
        if Phase(fit.phase) is Phase.TRAINING:
            yield from _switched_on(settings, "model.enable_gradient_checkpointing", _RECOMPUTATION)
        yield from _smaller(planned, fit, verdict)
    # verl's engines offload between steps and load the state back for each one; only FSDP itself can train with it on
    # the host.
    off = [key for key in names.offload if key in settings and not settings.truth(key)]
    if off and settings.text(names.strategy) == "fsdp":
        changes = tuple((key, True) for key in off)
        yield Knob(changes, _("keeps weights, gradients, and the optimizer's state on the host"))
    twice = 2 * planned.share.sequence_parallel
    if roomy and _can_share(planned, twice):
        # verl splits only packed sequences among NPUs.
        packing = () if settings.truth(names.packed) else ((names.packed, True),)
        yield Knob(((names.ulysses, twice), *packing), _SHARING)
    yield from _more_npus_of_torchrun(planned, names, max(_times(fit, verdict) for fit in failing))


def _state(fit: PhaseFit) -> int:
    """Return the bytes of weights, gradients, and the optimizer's state."""
    return sum(fit.cost.holders.get(each.value, 0) for each in _STATE) if fit.cost else 0


def _room(fit: PhaseFit, verdict: Verdict) -> int:
    """Return the bytes that remain for tensors other than the models' state. The result is slightly too high."""
    return fit.tensors * verdict.capacity // max(fit.needed, 1) - _state(fit)


def _times(fit: PhaseFit, verdict: Verdict) -> int:
    """Return the smallest power of two that, multiplied by the number of NPUs, makes the models' state fit."""
    there = max(_room(fit, verdict) + _state(fit), 1)
    return int(2 ** max(math.ceil(math.log2(max(_state(fit), 1) / there)), 1))


def _switched_on(settings: Settings, key: str, why: str) -> Iterator[Knob]:
    """Yield a knob that turns on a setting, if the setting exists and is off."""
    if key in settings and not settings.truth(key):
        yield Knob(((key, True),), why)


def _fewer_activations(planned: Planned, fit: PhaseFit, verdict: Verdict) -> Iterator[Knob]:
    settings, phase = planned.settings, Phase(fit.phase)
    if phase is Phase.UPDATE_ACTOR:
        yield from _switched_on(settings, f"{MODEL}.enable_gradient_checkpointing", _RECOMPUTATION)
    if phase is Phase.UPDATE_CRITIC:
        yield from _switched_on(settings, f"{CRITIC}.model.enable_gradient_checkpointing", _RECOMPUTATION)
    yield from _smaller(planned, fit, verdict)
    if phase in (Phase.UPDATE_ACTOR, Phase.LOG_PROB):
        yield from _switched_on(
            settings, f"{ACTOR}.entropy_from_logits_with_chunking", _("never holds two copies of all logits")
        )
    if phase is Phase.UPDATE_ACTOR:
        yield from _switched_on(
            settings, f"{ACTOR}.entropy_checkpointing", _("does not keep probabilities for the entropy")
        )


def _smaller(planned: Planned, fit: PhaseFit, verdict: Verdict) -> Iterator[Knob]:
    """Yield knobs that divide micro batches by the power of two that is needed, down to one sequence.

    If some micro batch exceeds its token budget by enough, a knob that enforces the budget comes first. The knobs
    assume that most of the memory is in activations, which grow with the number of sequences.
    """
    share, phase = planned.share, Phase(fit.phase)
    ratio = (fit.tensors - _state(fit)) / _room(fit, verdict)
    batches = [batch for batch in share.micro_batches if batch.phase is phase]
    if any(share.overdrawn(batch) >= ratio for batch in batches):
        yield Knob(((environment.TOKEN_BUDGET.name, 1),), _("keeps micro batches within their token budget"))
    divisor = 2 ** max(math.ceil(math.log2(ratio)), 1)
    for batch in batches:
        size = batch.size // divisor
        if batch.dynamic:
            size = max(size, -(-sum(share.padded) // batch.sequence_parallel))
        else:
            size = _dividing(share.mini_sequences, size) * (share.data if batch.together else 1)
        if size < planned.settings.whole(batch.key, 1):
            yield Knob(((batch.key, size),), _("makes the micro batches of {phase} smaller").format(phase=phase.value))


def _dividing(mini: int, most: int) -> int:
    """Return the largest micro-batch size that divides a mini batch and is at most `most`."""
    return next((each for each in range(most, 0, -1) if mini % each == 0), 1)


def _rollout_knobs(rollout: Rollout, verdict: Verdict, engine: PhaseFit) -> Iterator[Knob]:
    fitting = math.floor(_spare(rollout, verdict, engine) / _UTILIZATION_STEP) * _UTILIZATION_STEP
    if max(rollout.least / verdict.capacity, _LEAST_UTILIZATION) <= fitting:
        share = round(min(fitting, _MOST_UTILIZATION), 2)
        if not math.isclose(share, rollout.utilization):
            change = (f"{ROLLOUT}.gpu_memory_utilization", share)
            yield Knob(
                (change,), _("gives the engine only the memory that it needs, and leaves the rest to the trainer")
            )


def _spare(rollout: Rollout, verdict: Verdict, engine: PhaseFit) -> float:
    """Return the fraction of an NPU's memory that is left for the engine."""
    return (verdict.capacity - (engine.needed - rollout.needed)) / verdict.capacity


def _has_no_room(rollout: Rollout, verdict: Verdict, engine: PhaseFit) -> bool:
    """Return whether the engine does not fit, whatever share of the memory it gets."""
    return rollout.least / verdict.capacity > min(_spare(rollout, verdict, engine), _MOST_UTILIZATION)


def _more_tensor(planned: Planned, rollout: Rollout) -> Iterator[Knob]:
    twice = 2 * rollout.tensor
    if planned.model.heads % twice == 0 and rollout.npus % twice == 0:
        change = (ROLLOUT_TENSOR, twice)
        yield Knob((change,), _("divides the engine's weights among more NPUs"))


def _smaller_buckets(planned: Planned, rollout: Rollout) -> Iterator[Knob]:
    """Yield knobs for the weight sync: the smallest buckets that can hold the largest weight, and freeing the cache
    during a sync.

    Without IPC between NPUs, a bucket must hold a whole weight.
    """
    megabytes = -(-planned.model.largest >> 20)
    if megabytes < rollout.bucket >> 20:
        yield Knob(((BUCKET, megabytes),), _("makes the buffers of the weight sync smaller"))
    if rollout.bucket:
        yield from _switched_on(
            planned.settings, FREE_CACHE_ENGINE, _("makes the servers free their cache during the sync")
        )


def _offloads(settings: Settings, phase: Phase) -> Iterator[Knob]:
    """Yield knobs that offload a model's state to the host and thereby help a phase. While one model is updated, the
    other may be offloaded."""
    others = {Phase.UPDATE_ACTOR: ("critic",), Phase.UPDATE_CRITIC: ("actor",)}
    for name, why in _OFFLOADS:
        for role in others.get(phase, ("actor", "critic")):
            if role == "actor" or has_critic(settings):
                keys = [f"{section}.{name}" for section in _SECTIONS[role] if f"{section}.{name}" in settings]
                yield from (
                    _switched_on(settings, keys[0], _("{why}: the {role}'s").format(why=why, role=role))
                    if keys
                    else ()
                )


def _can_share(planned: Planned, among: int) -> bool:
    return not planned.share.local % among and not planned.model.heads % among


def _more_ulysses(planned: Planned) -> Iterator[Knob]:
    settings, now = planned.settings, planned.share.sequence_parallel
    # verl splits only packed sequences among NPUs.
    packed = settings.truth(PACKED)
    if is_megatron(settings) or not packed or not _can_share(planned, 2 * now):
        return
    for key in (f"{ACTOR}.ulysses_sequence_parallel_size", f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size"):
        if key in settings and settings.whole(key, 1) == now:
            yield Knob(((key, 2 * now),), _SHARING)
            return


def _more_npus(planned: Planned, factor: int) -> Iterator[Knob]:
    share = planned.share
    mini = share.mini_sequences // factor
    changes = _grown(planned, factor, NPUS, NODES)
    for batch in share.micro_batches:
        if batch.phase in (Phase.UPDATE_ACTOR, Phase.UPDATE_CRITIC) and not batch.dynamic and mini % batch.size:
            changes.append((batch.key, _dividing(mini, batch.size) * (share.data * factor if batch.together else 1)))
    yield from _divided_among(planned, f"{ACTOR}.fsdp_config.fsdp_size", changes if mini else [], factor)


def _more_npus_of_torchrun(planned: Planned, names: Names, factor: int) -> Iterator[Knob]:
    share = planned.share
    changes = _grown(planned, factor, TORCHRUN_RANKS, TORCHRUN_NODES)
    step, batch = share.step_sequences // factor, share.micro_batches[0]
    if not names.engines and step % batch.size:
        changes.append((MICRO_BATCH, _dividing(step, batch.size)))
    more = changes if share.step_sequences % factor == 0 else []
    yield from _divided_among(planned, "engine.fsdp_size", more, factor)


def _divided_among(
    planned: Planned, fsdp_size: str, more: Sequence[tuple[str, object]], factor: int
) -> Iterator[Knob]:
    """Yield a knob that divides the models' state among all NPUs of the job. If it is already divided among all of
    them, the knob adds NPUs."""
    if 0 < planned.settings.whole(fsdp_size, -1) < planned.share.world:
        yield Knob(((fsdp_size, -1),), _DIVIDING_ALL)
    elif more:
        yield Knob(tuple(more), _DIVIDING_MORE, npus=planned.share.world * factor)


def _grown(planned: Planned, factor: int, local: str, nodes: str) -> list[tuple[str, object]]:
    """Return changes to the NPUs per node and the number of nodes that multiply the job's NPUs by `factor`."""
    share = planned.share
    wanted = max(share.local, min(share.local * factor, _SERVER))
    changes: list[tuple[str, object]] = [(local, wanted)] if wanted != share.local else []
    if share.world * factor // wanted != share.world // share.local:
        changes.append((nodes, share.world * factor // wanted))
    return changes
