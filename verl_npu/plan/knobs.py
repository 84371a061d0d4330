"""Settings that make a plan need less memory, in the order in which they cost least."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ..rehearse.settings import Settings
from .phase import Holder, Phase
from .planning import Planned
from .roles import has_critic
from .verdict import Fit, PhaseFit, Verdict

__all__ = ["Knob", "knobs"]

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_STEP = 0.05
_LEAST_UTILIZATION, _MOST_UTILIZATION = 0.2, 0.9
_STATE = (Holder.WEIGHTS, Holder.GRADIENTS, Holder.OPTIMIZER)
_RECOMPUTATION = "keeps a layer's input only"
_OFFLOADS = (
    ("optimizer_offload", "keeps the optimizer's state on the host between updates"),
    ("param_offload", "keeps the weights on the host between phases"),
)
_SECTIONS = {
    "actor": (f"{_ACTOR}.fsdp_config", f"{_ACTOR}.megatron"),
    "critic": ("critic.model.fsdp_config", "critic.fsdp", "critic.megatron"),
}
_NODE = 8
"""NPUs of a server, if a script has fewer in a node."""


@dataclass(frozen=True, slots=True)
class Knob:
    """Settings that are changed together, and why."""

    changes: tuple[tuple[str, object], ...]
    why: str


def knobs(planned: Planned, verdict: Verdict) -> list[Knob]:
    """Return what is worth trying next for the phases that do not fit; empty if nothing is left.

    `planned.settings` are those of the last try, so that a micro batch that was halved is halved again. A phase whose
    weights, gradients and optimizer's state alone do not fit is not given smaller micro batches.
    """
    failing = [phase for phase in verdict.phases if phase.fit is Fit.DOES_NOT]
    found: list[Knob] = []
    for phase in failing:
        if phase.phase == Phase.ROLLOUT.value:
            found += _of_rollout(planned, verdict, phase)
        elif _room(phase, verdict) > 0:
            found += _fewer_activations(Phase(phase.phase), planned, phase, verdict)
        found += _offloads(planned.settings, Phase(phase.phase))
        if phase.phase == Phase.WEIGHT_SYNC.value or _has_no_room(planned, verdict, phase):
            found += _more_tensor(planned)
    if any(_room(phase, verdict) > 0 for phase in failing if phase.cost):
        found += _more_ulysses(planned)
    dividing = [phase for phase in failing if phase.tensors]
    if dividing:
        found += _more_npus(planned, max(_times(phase, verdict) for phase in dividing))
    return list(dict.fromkeys(found))


def _room(phase: PhaseFit, verdict: Verdict) -> int:
    """Bytes of tensors for which there is memory, less the models' state: a little more than there is."""
    return phase.tensors * verdict.capacity // max(phase.needed, 1) - _state(phase)


def _state(phase: PhaseFit) -> int:
    return sum(phase.cost.holders.get(each.value, 0) for each in _STATE) if phase.cost else 0


def _of_rollout(planned: Planned, verdict: Verdict, engine: PhaseFit) -> Iterator[Knob]:
    rollout = planned.rollout
    fitting = math.floor(_spare(planned, verdict, engine) / _STEP) * _STEP
    if max(rollout.least / verdict.capacity, _LEAST_UTILIZATION) <= fitting:
        share = round(min(fitting, _MOST_UTILIZATION), 2)
        if not math.isclose(share, rollout.utilization):
            change = (f"{_ROLLOUT}.gpu_memory_utilization", share)
            yield Knob((change,), "is what the engine needs, and leaves the trainer what it keeps meanwhile")


def _spare(planned: Planned, verdict: Verdict, engine: PhaseFit) -> float:
    """The part of an NPU's memory that the trainer leaves to the engine."""
    return (verdict.capacity - (engine.needed - planned.rollout.needed)) / verdict.capacity


def _has_no_room(planned: Planned, verdict: Verdict, phase: PhaseFit) -> bool:
    """Whether an engine cannot have what it needs, whatever its share."""
    if phase.phase != Phase.ROLLOUT.value:
        return False
    return planned.rollout.least / verdict.capacity > min(_spare(planned, verdict, phase), _MOST_UTILIZATION)


def _more_tensor(planned: Planned) -> Iterator[Knob]:
    twice = 2 * planned.rollout.tensor
    if planned.model.heads % twice == 0 and planned.rollout.npus % twice == 0:
        change = (f"{_ROLLOUT}.tensor_model_parallel_size", twice)
        yield Knob((change,), "divides the engine's weights among more NPUs")


def _fewer_activations(phase: Phase, planned: Planned, fit: PhaseFit, verdict: Verdict) -> Iterator[Knob]:
    settings = planned.settings
    if phase is Phase.UPDATE_ACTOR:
        yield from _switched_on(settings, "actor_rollout_ref.model.enable_gradient_checkpointing", _RECOMPUTATION)
    if phase is Phase.UPDATE_CRITIC:
        yield from _switched_on(settings, "critic.model.enable_gradient_checkpointing", _RECOMPUTATION)
    rest = fit.tensors - _state(fit)
    yield from _smaller(phase, planned, rest / _room(fit, verdict))
    if phase in (Phase.UPDATE_ACTOR, Phase.LOG_PROB):
        yield from _switched_on(settings, f"{_ACTOR}.entropy_from_logits_with_chunking", "never has all logits twice")
    if phase is Phase.UPDATE_ACTOR:
        yield from _switched_on(settings, f"{_ACTOR}.entropy_checkpointing", "keeps no probabilities for the entropy")


def _smaller(phase: Phase, planned: Planned, times: float) -> Iterator[Knob]:
    """A micro batch that is so many times smaller, in powers of two, if it is more than one sequence.

    What does not fit are at least the activations of the sequences, which grow with them.
    """
    share = planned.share
    divisor = 2 ** max(math.ceil(math.log2(times)), 1)
    for batch in share.micro_batches:
        if batch.phase is not phase:
            continue
        size = batch.size // divisor
        if batch.dynamic:
            size = max(size, -(-sum(share.padded) // batch.inner))
        else:
            size = _dividing(share.mini_sequences, size) * (share.data if batch.together else 1)
        if size < planned.settings.whole(batch.key, 1):
            yield Knob(((batch.key, size),), f"makes a micro batch of the {phase.value} smaller")


def _switched_on(settings: Settings, key: str, why: str) -> list[Knob]:
    return [Knob(((key, True),), why)] if key in settings and not settings.truth(key) else []


def _offloads(settings: Settings, phase: Phase) -> Iterator[Knob]:
    """Those that help a phase: an update needs all of its own model, and none of the other one."""
    others = {Phase.UPDATE_ACTOR: ("critic",), Phase.UPDATE_CRITIC: ("actor",)}
    for name, why in _OFFLOADS:
        for role in others.get(phase, ("actor", "critic")):
            if role == "actor" or has_critic(settings):
                keys = [f"{section}.{name}" for section in _SECTIONS[role] if f"{section}.{name}" in settings]
                yield from _switched_on(settings, keys[0], f"{why}: the {role}'s") if keys else ()


def _more_ulysses(planned: Planned) -> list[Knob]:
    settings = planned.settings
    if settings.text(f"{_ACTOR}.strategy") == "megatron":
        return []
    if not settings.truth("actor_rollout_ref.model.use_remove_padding"):
        return []  # verl shares packed sequences only
    twice = 2 * planned.share.inner
    if planned.share.local % twice or planned.model.heads % twice:
        return []
    keys = [f"{_ACTOR}.ulysses_sequence_parallel_size", f"{_ACTOR}.fsdp_config.ulysses_sequence_parallel_size"]
    for key in keys:
        if key in settings and settings.whole(key, 1) == planned.share.inner:
            return [Knob(((key, twice),), "shares a sequence among more NPUs")]
    return []


def _times(phase: PhaseFit, verdict: Verdict) -> int:
    """How many times as many NPUs the models' state needs at least, as a power of two."""
    there = max(_room(phase, verdict) + _state(phase), 1)
    return int(2 ** max(math.ceil(math.log2(max(_state(phase), 1) / there)), 1))


def _more_npus(planned: Planned, times: int) -> list[Knob]:
    settings, share = planned.settings, planned.share
    among = settings.whole(f"{_ACTOR}.fsdp_config.fsdp_size", -1)
    if 0 < among < share.world:
        change = (f"{_ACTOR}.fsdp_config.fsdp_size", -1)
        return [Knob((change,), "divides weights, gradients and the optimizer's state among all NPUs")]
    mini = share.mini_sequences // times
    if not mini:
        return []
    local = max(share.local, min(share.local * times, _NODE))
    changes: list[tuple[str, object]] = []
    if local != share.local:
        changes.append(("trainer.n_gpus_per_node", local))
    if nodes := share.world * times // local - share.world // share.local:
        changes.append(("trainer.nnodes", share.world // share.local + nodes))
    for batch in share.micro_batches:
        if batch.phase in (Phase.UPDATE_ACTOR, Phase.UPDATE_CRITIC) and not batch.dynamic and mini % batch.size:
            changes.append((batch.key, _dividing(mini, batch.size) * (share.data * times if batch.together else 1)))
    return [Knob(tuple(changes), "divides weights, gradients and the optimizer's state among more NPUs")]


def _dividing(mini: int, most: int) -> int:
    """Return the largest micro batch up to `most` of which verl can make a mini batch."""
    return next((each for each in range(most, 0, -1) if mini % each == 0), 1)
