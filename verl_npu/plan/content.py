"""A plan as JSON has it, and what a later plan is compared with."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import PlanError
from .fitting import Try
from .job import Outcome
from .largest import Largest
from .planning import Planned
from .timing import assumptions, spans, total
from .verdict import Fit, PhaseFit, Verdict

__all__ = ["FORMAT", "content", "read"]

FORMAT = 1


def content(
    name: str, planned: Planned, verdict: Verdict, tries: Sequence[Try] = (), largest: Largest | None = None
) -> dict[str, object]:
    """Return all of a plan. Bytes and seconds."""
    found = spans(planned)
    return {
        "format": FORMAT,
        "simulated": True,
        "name": name,
        "verdict": verdict.fit.value,
        "hardware": dataclasses.asdict(planned.hardware),
        "capacity": verdict.capacity,
        "model": {
            "source": planned.model.source,
            "parameters": planned.model.parameters,
            "active": planned.model.active,
            "layers": planned.model.layers,
        },
        "share": _share(planned),
        "rollout": dataclasses.asdict(planned.rollout) if planned.rollout else None,
        "reserve": [dataclasses.asdict(each) for each in verdict.reserve],
        "phases": [_phase(phase) for phase in verdict.phases],
        "seconds": [dataclasses.asdict(span) for span in (*found, total(found))],
        "assumptions": list(assumptions(planned)),
        "timeline": {
            str(outcome.rank): [dataclasses.asdict(point) for point in outcome.timeline]
            for outcome in planned.outcomes
        },
        "ranks": [_rank(outcome, planned) for outcome in planned.outcomes],
        "tries": [
            {"changes": dict(each.knob.changes), "why": each.knob.why, "verdict": each.verdict.fit.value}
            for each in tries
        ],
        "proposal": dict(tries[-1].changes) if tries and tries[-1].verdict.fit is Fit.FITS else {},
        "largest_micro_batch": dataclasses.asdict(largest) if largest else None,
        "notes": list(planned.notes),
        "took": planned.seconds,
    }


def _share(planned: Planned) -> dict[str, object]:
    share = planned.share
    return {
        **dataclasses.asdict(share),
        "kinds": {str(rank): kind for rank, kind in share.kinds.items()},
        "micro_batches": [{**dataclasses.asdict(each), "phase": each.phase.value} for each in share.micro_batches],
    }


def _phase(phase: PhaseFit) -> dict[str, object]:
    return {
        "phase": phase.phase,
        "rank": phase.rank,
        "tensors": phase.tensors,
        "needed": phase.needed,
        "fit": phase.fit.value,
        "holders": dict(phase.holders),
    }


def _rank(outcome: Outcome, planned: Planned) -> dict[str, object]:
    return {
        "rank": outcome.rank,
        "kind": planned.share.kinds.get(outcome.rank, ""),
        "peaks": {cost.phase: cost.peak for cost in outcome.phases},
        "host": outcome.host,
        "seconds": outcome.seconds,
        "error": outcome.error,
        "failed_in": outcome.failed_in,
    }


def read(path: Path) -> Mapping[str, object]:
    """Read a plan that was written as JSON.

    Raises:
        PlanError: the file is none.
    """
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise PlanError(
            subject=str(path),
            expected="a plan that `verl-npu plan --json` wrote",
            found=str(error),
            fix="give another file",
        ) from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise PlanError(
            subject=str(path),
            expected=f"a plan of format {FORMAT}",
            found=str(found.get("format", "none")) if isinstance(found, dict) else "none",
            fix="write it again with this verl-npu",
        )
    return found
