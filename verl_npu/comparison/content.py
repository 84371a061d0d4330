"""A comparison as JSON has it."""

from __future__ import annotations

import dataclasses

from ..training_log.log import TrainingLog
from ..training_log.numbers import plain
from .baselines import Baseline
from .comparison import Comparison
from .criterion import Judged, Verdict

__all__ = ["content"]


def content(made: Comparison) -> dict[str, object]:
    """Return all of a comparison; numbers that JSON does not have are the words nan, inf and -inf."""
    return {
        "verdict": made.outcome.value,
        "judged_by": list(made.judged_by),
        "npu": _log(made.npu),
        "reference": dataclasses.asdict(made.reference)
        if isinstance(made.reference, Baseline)
        else _log(made.reference),
        "common_steps": made.common,
        "standards": [_verdict(verdict) for verdict in made.verdicts],
        "metrics": [
            {
                "title": pair.metric.title,
                "names": list(pair.metric.names),
                "steps": pair.common,
                "npu": [plain(pair.npu[step]) for step in pair.common],
                "reference": [plain(pair.reference[step]) for step in pair.common],
                "mean_difference": plain(pair.mean_difference),
                "largest_difference_at": pair.largest,
            }
            for pair in made.pairs
        ],
    }


def _log(log: TrainingLog) -> dict[str, object]:
    return {
        "source": log.source,
        "steps": list(log.steps),
        "restarts": [dataclasses.asdict(restart) for restart in log.restarts],
        "left_over": list(log.left_over),
        "gaps": [list(gap) for gap in log.gaps()],
        "damaged": log.damaged,
        "cut": log.cut,
        "simulated": log.simulated,
        "notes": log.notes(),
    }


def _verdict(verdict: Verdict) -> dict[str, object]:
    return {
        "name": verdict.name,
        "title": verdict.title,
        "source": verdict.source,
        "verdict": verdict.outcome.value,
        "criteria": [_judged(judged) for judged in verdict.criteria],
    }


def _judged(judged: Judged) -> dict[str, object]:
    return {
        "name": judged.name,
        "formula": judged.formula,
        "limit": judged.limit,
        "verdict": judged.outcome.value,
        "npu": plain(judged.npu),
        "reference": plain(judged.reference),
        "value": plain(judged.value),
        "unit": judged.unit,
        "steps": list(judged.steps),
        "why": judged.why,
    }
