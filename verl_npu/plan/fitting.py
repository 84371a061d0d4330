"""Looks for settings with which a plan fits: each is planned again, and only what was seen to fit is proposed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..errors import PlanError
from ..rehearse.trainer import Trainer
from .knob import Knob
from .knobs import knobs
from .planning import Planned, Request, plan
from .verdict import Fit, Verdict, judge

__all__ = ["Try", "make_fit"]

_MOST = 8


@dataclass(frozen=True, slots=True)
class Try:
    """One more plan: all settings that were changed up to it, and what it came to."""

    knob: Knob
    changes: tuple[tuple[str, object], ...]
    planned: Planned
    verdict: Verdict


def make_fit(
    trainer: Trainer,
    tree: Path,
    request: Request,
    planned: Planned,
    verdict: Verdict,
    told: Callable[[str], None] = lambda text: None,
) -> list[Try]:
    """Turn one knob after the other until it fits, and return each try; the last one fits, or nothing did.

    A knob that does not lower what the worst phase needs is turned back.
    """
    tries: list[Try] = []
    useless: set[tuple[tuple[str, object], ...]] = set()
    changes: dict[str, object] = dict(request.changes)
    while verdict.fit is Fit.DOES_NOT and len(tries) < _MOST:
        left = [knob for knob in knobs(planned, verdict) if knob.changes not in useless]
        if not left:
            break
        knob = left[0]
        together = {**changes, **dict(knob.changes)}
        told(", ".join(f"{key}={value}" for key, value in knob.changes))
        try:
            asked = dataclasses.replace(request, changes=tuple(together.items()), model=planned.model)
            again = plan(trainer, tree, asked, told)
        except PlanError:
            useless.add(knob.changes)
            continue
        judged = judge(again)
        tries.append(Try(knob, tuple(together.items()), again, judged))
        if judged.fit is Fit.FAILED or (
            judged.fit is Fit.DOES_NOT and _excess(again, judged) >= _excess(planned, verdict)
        ):
            useless.add(knob.changes)
            continue
        changes, planned, verdict = together, again, judged
    return tries


def _excess(planned: Planned, verdict: Verdict) -> int:
    """Bytes that all phases together are over the NPU's memory, and that the engine lacks for one sequence."""
    over = sum(max(phase.needed - verdict.capacity, 0) for phase in verdict.phases)
    return over + (max(planned.rollout.least - planned.rollout.taken, 0) if planned.rollout else 0)
