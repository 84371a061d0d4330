"""What is to be seen of a training now."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from ..training_log.log import TrainingLog
from ..training_log.metrics import SHOWN, STEP_SECONDS, THROUGHPUT, TOKENS
from ..training_log.numbers import plain
from .oddities import Oddity, oddities
from .phases import split

__all__ = ["Phase", "State", "content", "state_of"]

RECENT = 20
"""Steps that a usual duration is taken of."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One part of a step."""

    name: str
    seconds: float
    usual: float
    """The median of the recent steps that have it."""


@dataclass(frozen=True, slots=True)
class State:
    """One look at a training."""

    log: TrainingLog
    step: int
    """The step that was logged last."""
    seconds: float | None
    """What that step took."""
    phases: tuple[Phase, ...]
    tokens_per_second: float | None
    """Of all NPUs together."""
    throughput: float | None
    """Tokens a second and NPU, as verl says it."""
    odd: tuple[Oddity, ...]


def state_of(log: TrainingLog) -> State | None:
    """Return what a log shows, or None while it has no step."""
    if not log.steps:
        return None
    seconds, tokens = STEP_SECONDS.of(log).get(log.last), TOKENS.of(log).get(log.last)
    recent = [split(log.steps[step]) for step in [step for step in log.steps if step <= log.last][-RECENT:]]
    phases = tuple(
        Phase(name, spent, median([each[name] for each in recent if name in each]))
        for name, spent in split(log.steps[log.last]).items()
    )
    return State(
        log=log,
        step=log.last,
        seconds=seconds,
        phases=phases,
        tokens_per_second=tokens / seconds if tokens is not None and seconds else None,
        throughput=THROUGHPUT.of(log).get(log.last),
        odd=tuple(oddities(log)),
    )


def content(state: State) -> dict[str, object]:
    """Return a state as JSON has it."""
    return {
        "source": state.log.source,
        "simulated": state.log.simulated,
        "steps": len(state.log.steps),
        "step": state.step,
        "seconds": plain(state.seconds),
        "phases": [
            {"name": phase.name, "seconds": plain(phase.seconds), "usual": plain(phase.usual)}
            for phase in state.phases
        ],
        "tokens_per_second": plain(state.tokens_per_second),
        "throughput": plain(state.throughput),
        "metrics": {
            metric.title: plain(values[state.step])
            for metric in SHOWN
            if state.step in (values := metric.of(state.log))
        },
        "odd": [{"kind": odd.kind.value, "step": odd.step, "text": odd.text} for odd in state.odd],
        "notes": state.log.notes(),
    }
