"""One change of a script's settings that makes a plan need less memory, and the sums that choose it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from .. import environment
from ..rehearse.settings import Settings
from .phase import Holder, Phase
from .planning import Planned
from .share import Share
from .verdict import PhaseFit, Verdict

__all__ = ["RECOMPUTATION", "Knob", "dividing", "grown", "room", "smaller", "state", "switched_on", "times"]

RECOMPUTATION = "keeps a layer's input only"
_NODE = 8
"""NPUs of a server, if a script has fewer in a node."""
_STATE = (Holder.WEIGHTS, Holder.GRADIENTS, Holder.OPTIMIZER)


@dataclass(frozen=True, slots=True)
class Knob:
    """Settings that are changed together, and why."""

    changes: tuple[tuple[str, object], ...]
    why: str


def room(phase: PhaseFit, verdict: Verdict) -> int:
    """Bytes of tensors for which there is memory, less the models' state: a little more than there is."""
    return phase.tensors * verdict.capacity // max(phase.needed, 1) - state(phase)


def state(phase: PhaseFit) -> int:
    """Bytes of weights, gradients and the optimizer's state."""
    return sum(phase.cost.holders.get(each.value, 0) for each in _STATE) if phase.cost else 0


def smaller(phase: Phase, planned: Planned, ratio: float) -> Iterator[Knob]:
    """A micro batch that is so many times smaller, in powers of two, if it is more than one sequence.

    One that keeps to its budget comes first, if that makes it small enough. What does not fit are at least the
    activations of the sequences, which grow with them.
    """
    share = planned.share
    if any(batch.phase is phase and share.overdrawn(batch) >= ratio for batch in share.micro_batches):
        yield Knob(((environment.TOKEN_BUDGET.name, 1),), "keeps micro batches within their token budget")
    divisor = 2 ** max(math.ceil(math.log2(ratio)), 1)
    for batch in share.micro_batches:
        if batch.phase is not phase:
            continue
        size = batch.size // divisor
        if batch.dynamic:
            size = max(size, -(-sum(share.padded) // batch.inner))
        else:
            size = dividing(share.mini_sequences, size) * (share.data if batch.together else 1)
        if size < planned.settings.whole(batch.key, 1):
            yield Knob(((batch.key, size),), f"makes a micro batch of the {phase.value} smaller")


def switched_on(settings: Settings, key: str, why: str) -> list[Knob]:
    """Switch a setting on that there is and is off."""
    return [Knob(((key, True),), why)] if key in settings and not settings.truth(key) else []


def times(phase: PhaseFit, verdict: Verdict) -> int:
    """How many times as many NPUs the models' state needs at least, as a power of two."""
    there = max(room(phase, verdict) + state(phase), 1)
    return int(2 ** max(math.ceil(math.log2(max(state(phase), 1) / there)), 1))


def grown(share: Share, factor: int, local: str, nodes: str) -> Iterator[tuple[str, object]]:
    """Yield the changes of two settings, NPUs of a node and nodes, with which there are so many times as many NPUs."""
    wanted = max(share.local, min(share.local * factor, _NODE))
    if wanted != share.local:
        yield local, wanted
    if share.world * factor // wanted != share.world // share.local:
        yield nodes, share.world * factor // wanted


def dividing(mini: int, most: int) -> int:
    """Return the largest micro batch up to `most` of which verl can make a mini batch."""
    return next((each for each in range(most, 0, -1) if mini % each == 0), 1)
