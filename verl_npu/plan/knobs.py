"""Settings that make a plan need less memory, in the order in which they cost least."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..rehearse.settings import Settings
from .knob import RECOMPUTATION, Knob, dividing, grown, room, smaller, state, switched_on, times
from .phase import Phase
from .planning import Planned
from .roles import has_critic
from .rollout import Rollout
from .tuning.knobs import tuning_knobs
from .verdict import Fit, PhaseFit, Verdict

__all__ = ["knobs"]

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_STEP = 0.05
_LEAST_UTILIZATION, _MOST_UTILIZATION = 0.2, 0.9
_OFFLOADS = (
    ("optimizer_offload", "keeps the optimizer's state on the host between updates"),
    ("param_offload", "keeps the weights on the host between phases"),
)
_SECTIONS = {
    "actor": (f"{_ACTOR}.fsdp_config", f"{_ACTOR}.megatron"),
    "critic": ("critic.model.fsdp_config", "critic.fsdp", "critic.megatron"),
}


def knobs(planned: Planned, verdict: Verdict) -> list[Knob]:
    """Return what is worth trying next for the phases that do not fit; empty if nothing is left.

    `planned.settings` are those of the last try, so that a micro batch that was halved is halved again. A phase whose
    weights, gradients and optimizer's state alone do not fit is not given smaller micro batches.
    """
    rollout = planned.rollout
    if rollout is None:
        return tuning_knobs(planned, verdict)
    failing = [phase for phase in verdict.phases if phase.fit is Fit.DOES_NOT]
    found: list[Knob] = []
    for phase in failing:
        if phase.phase == Phase.ROLLOUT.value:
            found += _of_rollout(rollout, verdict, phase)
        elif room(phase, verdict) > 0:
            found += _fewer_activations(Phase(phase.phase), planned, phase, verdict)
        found += _offloads(planned.settings, Phase(phase.phase))
        if phase.phase == Phase.WEIGHT_SYNC.value or _has_no_room(rollout, verdict, phase):
            found += _more_tensor(planned, rollout)
    if any(room(phase, verdict) > 0 for phase in failing if phase.cost):
        found += _more_ulysses(planned)
    divided = [phase for phase in failing if phase.tensors]
    if divided:
        found += _more_npus(planned, max(times(phase, verdict) for phase in divided))
    return list(dict.fromkeys(found))


def _of_rollout(rollout: Rollout, verdict: Verdict, engine: PhaseFit) -> Iterator[Knob]:
    fitting = math.floor(_spare(rollout, verdict, engine) / _STEP) * _STEP
    if max(rollout.least / verdict.capacity, _LEAST_UTILIZATION) <= fitting:
        share = round(min(fitting, _MOST_UTILIZATION), 2)
        if not math.isclose(share, rollout.utilization):
            change = (f"{_ROLLOUT}.gpu_memory_utilization", share)
            yield Knob((change,), "is what the engine needs, and leaves the trainer what it keeps meanwhile")


def _spare(rollout: Rollout, verdict: Verdict, engine: PhaseFit) -> float:
    """The part of an NPU's memory that the trainer leaves to the engine."""
    return (verdict.capacity - (engine.needed - rollout.needed)) / verdict.capacity


def _has_no_room(rollout: Rollout, verdict: Verdict, phase: PhaseFit) -> bool:
    """Whether an engine cannot have what it needs, whatever its share."""
    if phase.phase != Phase.ROLLOUT.value:
        return False
    return rollout.least / verdict.capacity > min(_spare(rollout, verdict, phase), _MOST_UTILIZATION)


def _more_tensor(planned: Planned, rollout: Rollout) -> Iterator[Knob]:
    twice = 2 * rollout.tensor
    if planned.model.heads % twice == 0 and rollout.npus % twice == 0:
        change = (f"{_ROLLOUT}.tensor_model_parallel_size", twice)
        yield Knob((change,), "divides the engine's weights among more NPUs")


def _fewer_activations(phase: Phase, planned: Planned, fit: PhaseFit, verdict: Verdict) -> Iterator[Knob]:
    settings = planned.settings
    if phase is Phase.UPDATE_ACTOR:
        yield from switched_on(settings, "actor_rollout_ref.model.enable_gradient_checkpointing", RECOMPUTATION)
    if phase is Phase.UPDATE_CRITIC:
        yield from switched_on(settings, "critic.model.enable_gradient_checkpointing", RECOMPUTATION)
    rest = fit.tensors - state(fit)
    yield from smaller(phase, planned, rest / room(fit, verdict))
    if phase in (Phase.UPDATE_ACTOR, Phase.LOG_PROB):
        yield from switched_on(settings, f"{_ACTOR}.entropy_from_logits_with_chunking", "never has all logits twice")
    if phase is Phase.UPDATE_ACTOR:
        yield from switched_on(settings, f"{_ACTOR}.entropy_checkpointing", "keeps no probabilities for the entropy")


def _offloads(settings: Settings, phase: Phase) -> Iterator[Knob]:
    """Those that help a phase: an update needs all of its own model, and none of the other one."""
    others = {Phase.UPDATE_ACTOR: ("critic",), Phase.UPDATE_CRITIC: ("actor",)}
    for name, why in _OFFLOADS:
        for role in others.get(phase, ("actor", "critic")):
            if role == "actor" or has_critic(settings):
                keys = [f"{section}.{name}" for section in _SECTIONS[role] if f"{section}.{name}" in settings]
                yield from switched_on(settings, keys[0], f"{why}: the {role}'s") if keys else ()


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


def _more_npus(planned: Planned, factor: int) -> list[Knob]:
    settings, share = planned.settings, planned.share
    among = settings.whole(f"{_ACTOR}.fsdp_config.fsdp_size", -1)
    if 0 < among < share.world:
        change = (f"{_ACTOR}.fsdp_config.fsdp_size", -1)
        return [Knob((change,), "divides weights, gradients and the optimizer's state among all NPUs")]
    mini = share.mini_sequences // factor
    if not mini:
        return []
    changes: list[tuple[str, object]] = list(grown(share, factor, "trainer.n_gpus_per_node", "trainer.nnodes"))
    for batch in share.micro_batches:
        if batch.phase in (Phase.UPDATE_ACTOR, Phase.UPDATE_CRITIC) and not batch.dynamic and mini % batch.size:
            changes.append((batch.key, dividing(mini, batch.size) * (share.data * factor if batch.together else 1)))
    return [Knob(tuple(changes), "divides weights, gradients and the optimizer's state among more NPUs")]
