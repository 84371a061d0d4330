"""The result of a comparison as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from .comparing import Comparison, Judged
from .judging import MARGIN, Judgement
from .recording import LOGPROBS


def content(made: Comparison, not_shown: Sequence[str]) -> dict[str, object]:
    """Return a comparison as JSON. `not_shown` lists the circumstances of the job that the comparison leaves out."""
    bad, cause = made.first, made.cause
    missing = [
        f"{side.value}: {name} was not recorded"
        for side, judged in made.sides.items()
        for name in ("norm:out", LOGPROBS)
        if name not in judged.recording.values
    ]
    return {
        "first": bad and made.side and {"side": made.side.value, **_judgement(bad)},
        "cause": cause and {"reason": cause.reason.value, "said": cause.said},
        "numbers": made.numbers and asdict(made.numbers),
        "remaining": made.remaining and asdict(made.remaining),
        "graphs": made.graphs and asdict(made.graphs),
        "margin": MARGIN,
        "sides": {side.value: _side(judged) for side, judged in made.sides.items()},
        "not_shown": [*not_shown, *missing],
    }


def _side(judged: Judged) -> dict[str, object]:
    return {
        "dtype": str(judged.recording.dtype).removeprefix("torch."),
        "operators": [_judgement(each) for each in judged.operators],
        "streams": [{"name": name, "error": error, "rounding": rounding} for name, error, rounding in judged.streams],
    }


def _judgement(each: Judgement) -> dict[str, object]:
    return {
        "operator": each.operator.name,
        "kind": each.operator.kind.value,
        "verdict": each.verdict.value,
        "error": each.error,
        "rounding": each.rounding,
        "ratio": each.ratio,
        "tokens": each.tokens,
        "flips": each.flips and asdict(each.flips),
    }
