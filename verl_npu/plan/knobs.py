"""Settings that make a plan need less memory, in the order in which they cost least."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..rehearse.settings import Settings
from .phase import Phase
from .planning import Planned
from .verdict import Fit, Verdict

__all__ = ["Knob", "knobs"]

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_REFERENCE = "actor_rollout_ref.ref"
_STEP = 0.05
_LEAST_UTILIZATION = 0.2


@dataclass(frozen=True, slots=True)
class Knob:
    """Settings that are changed together, and why."""

    changes: tuple[tuple[str, object], ...]
    why: str


def knobs(planned: Planned, verdict: Verdict) -> list[Knob]:
    """Return what is worth trying next for the phases that do not fit; empty if nothing is left.

    `planned.settings` are those of the last try, so that a micro batch that was halved is halved again.
    """
    settings = planned.settings
    failing = {phase.phase for phase in verdict.phases if phase.fit is Fit.DOES_NOT}
    found: list[Knob] = []
    if Phase.ROLLOUT.value in failing:
        found += _of_rollout(planned, verdict)
    if failing & {Phase.LOG_PROB.value, Phase.REFERENCE.value, Phase.VALUES.value}:
        found += _halved(settings, f"{_ROLLOUT}.log_prob", planned)
        found += _halved(settings, f"{_REFERENCE}.log_prob", planned)
    if failing & {Phase.UPDATE_ACTOR.value, Phase.UPDATE_CRITIC.value}:
        found += _switched_on(
            settings, "actor_rollout_ref.model.enable_gradient_checkpointing", "keeps a layer's input only"
        )
        found += _halved(settings, f"{_ACTOR}.ppo", planned)
        found += _halved(settings, "critic.ppo", planned) if Phase.UPDATE_CRITIC.value in failing else []
    if failing & {Phase.UPDATE_ACTOR.value, Phase.LOG_PROB.value}:
        found += _switched_on(settings, f"{_ACTOR}.entropy_from_logits_with_chunking", "never has all logits twice")
        found += _switched_on(settings, f"{_ACTOR}.entropy_checkpointing", "keeps no probabilities for the entropy")
    if failing:
        found += list(_offloads(settings))
        found += _more_ulysses(settings, planned)
    return found


def _of_rollout(planned: Planned, verdict: Verdict) -> list[Knob]:
    engine = next(phase for phase in verdict.phases if phase.phase == Phase.ROLLOUT.value)
    spare = verdict.capacity - (engine.needed - planned.rollout.taken)
    fitting = int(spare / verdict.capacity / _STEP) * _STEP
    if planned.rollout.sequences == 0 or fitting >= planned.rollout.utilization or fitting < _LEAST_UTILIZATION:
        return []
    change = (f"{_ROLLOUT}.gpu_memory_utilization", round(fitting, 2))
    return [Knob((change,), "leaves the trainer what it keeps meanwhile")]


def _halved(settings: Settings, prefix: str, planned: Planned) -> list[Knob]:
    """Half of a micro batch, if it is more than one sequence."""
    dynamic = f"{_ACTOR}.use_dynamic_bsz" if prefix.endswith(".ppo") else f"{prefix}_use_dynamic_bsz"
    if settings.truth(dynamic):
        key = f"{prefix}_max_token_len_per_gpu"
        half, least = settings.whole(key) // 2, (planned.share.prompt + planned.share.response) // planned.share.inner
        return [Knob(((key, half),), "halves a micro batch")] if half >= least else []
    key = f"{prefix}_micro_batch_size_per_gpu"
    half = settings.whole(key) // 2
    return [Knob(((key, half),), "halves a micro batch")] if half else []


def _switched_on(settings: Settings, key: str, why: str) -> list[Knob]:
    return [Knob(((key, True),), why)] if key in settings and not settings.truth(key) else []


def _offloads(settings: Settings) -> Iterator[Knob]:
    section = "megatron" if settings.text(f"{_ACTOR}.strategy") == "megatron" else "fsdp_config"
    for name, why in (
        ("optimizer_offload", "keeps the optimizer's state on the host between updates"),
        ("param_offload", "keeps the weights on the host between phases"),
    ):
        yield from _switched_on(settings, f"{_ACTOR}.{section}.{name}", why)


def _more_ulysses(settings: Settings, planned: Planned) -> list[Knob]:
    if settings.text(f"{_ACTOR}.strategy") == "megatron":
        return []
    for key in (f"{_ACTOR}.fsdp_config.ulysses_sequence_parallel_size", f"{_ACTOR}.ulysses_sequence_parallel_size"):
        if key in settings:
            twice = 2 * max(settings.whole(key, 1), 1)
            fits = planned.share.local % twice == 0 and planned.model.heads % twice == 0
            return [Knob(((key, twice),), "shares a sequence among more NPUs")] if fits else []
    return []
