"""Settings that make fine-tuning need less memory, in the order in which they cost least."""

from __future__ import annotations

from collections.abc import Iterator

from ..knob import RECOMPUTATION, Knob, dividing, grown, room, smaller, state, switched_on, times
from ..launch import NODES, RANKS
from ..phase import Phase
from ..planning import Planned
from ..verdict import Fit, PhaseFit, Verdict
from .names import MICRO, Names, names_of

__all__ = ["tuning_knobs"]


def tuning_knobs(planned: Planned, verdict: Verdict) -> list[Knob]:
    """Return what is worth trying next for the phases that do not fit; empty if nothing is left."""
    names = names_of(planned.trainer, planned.settings)
    failing = [phase for phase in verdict.phases if phase.fit is Fit.DOES_NOT]
    if names is None or not failing:
        return []
    found: list[Knob] = []
    for phase in failing:
        if room(phase, verdict) > 0:
            found += _fewer_activations(planned, phase, verdict)
    found += _offload(names, planned)
    if any(room(phase, verdict) > 0 for phase in failing):
        found += _more_ulysses(names, planned)
    found += _more_npus(names, planned, max(times(phase, verdict) for phase in failing))
    return list(dict.fromkeys(found))


def _fewer_activations(planned: Planned, fit: PhaseFit, verdict: Verdict) -> Iterator[Knob]:
    phase = Phase(fit.phase)
    if phase is Phase.TRAINING:
        yield from switched_on(planned.settings, "model.enable_gradient_checkpointing", RECOMPUTATION)
    yield from smaller(phase, planned, (fit.tensors - state(fit)) / room(fit, verdict))


def _offload(names: Names, planned: Planned) -> Iterator[Knob]:
    """Have FSDP itself keep the state on the host: what engines offload between steps comes back for each of them."""
    settings = planned.settings
    off = [key for key in names.offload if key in settings and not settings.truth(key)]
    if off and settings.text(names.strategy) == "fsdp":
        changes = tuple((key, True) for key in off)
        yield Knob(changes, "keeps weights, gradients and the optimizer's state on the host")


def _more_ulysses(names: Names, planned: Planned) -> Iterator[Knob]:
    twice = 2 * planned.share.inner
    if planned.share.local % twice or planned.model.heads % twice:
        return
    changes: list[tuple[str, object]] = [(names.ulysses, twice)]
    if not planned.settings.truth(names.packed):
        changes.append((names.packed, True))  # verl shares packed sequences only
    yield Knob(tuple(changes), "shares a sequence among more NPUs")


def _more_npus(names: Names, planned: Planned, factor: int) -> Iterator[Knob]:
    share = planned.share
    if 0 < planned.settings.whole("engine.fsdp_size", -1) < share.world:
        yield Knob((("engine.fsdp_size", -1),), "divides weights, gradients and the optimizer's state among all NPUs")
        return
    if share.step_sequences % factor:
        return
    changes = list(grown(share, factor, RANKS, NODES))
    step, batch = share.step_sequences // factor, share.micro_batches[0]
    if not names.engines and step % batch.size:
        changes.append((MICRO, dividing(step, batch.size)))
    yield Knob(tuple(changes), "divides weights, gradients and the optimizer's state among more NPUs")
