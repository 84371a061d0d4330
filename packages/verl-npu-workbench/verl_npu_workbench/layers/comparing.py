"""Compares a trainer and a rollout engine that compute the same tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

import torch

from verl_npu.errors import RolloutError
from verl_npu.language import gettext as _

from .causes import Cause, Reason, Sampling, cause_of, exchanged
from .judging import MARGIN, Judgement, Pair, Verdict, judge
from .recording import LOGPROBS, Recording
from .reference import Reference, operators


class Side(Enum):
    """One of the computations that are compared."""

    TRAINER = _("trainer")
    ENGINE = _("engine")
    GRAPHS = _("engine with graphs")


@dataclass(frozen=True, slots=True)
class Numbers:
    """The differences between the trainer's and the engine's log-probabilities of the response tokens."""

    tokens: int
    k1: float
    """The mean of log(engine) - log(trainer), an estimate of the KL divergence KL(engine || trainer)."""
    k3: float
    """The mean of r - 1 - log(r), where r is the importance weight: an estimate with a lower variance."""
    mean_difference: float
    """The mean absolute difference of the probabilities."""
    max_difference: float
    beyond: float
    """The share of tokens whose probabilities differ by more than 0.1."""
    effective: float
    """The effective sample size of the importance weights, as a share of the tokens."""


def numbers(trainer: torch.Tensor, engine: torch.Tensor) -> Numbers:
    """Return the differences between the trainer's and the engine's log-probabilities of tokens that the engine
    sampled."""
    ours, theirs = trainer.double().flatten(), engine.double().flatten()
    difference = (ours.exp() - theirs.exp()).abs()
    log_ratio = ours - theirs
    weights = log_ratio.exp()
    return Numbers(
        tokens=len(ours),
        k1=float(-log_ratio.mean()),
        k3=float((weights - 1 - log_ratio).mean()),
        mean_difference=float(difference.mean()),
        max_difference=float(difference.max()),
        beyond=float((difference > 0.1).double().mean()),
        effective=float(weights.sum().square() / weights.square().sum() / len(weights)),
    )


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdicts on the operators of one side (trainer or engine), and on the side as a whole."""

    recording: Recording
    operators: Sequence[Judgement]
    streams: Sequence[Mapping[str, object]]
    """The residual stream at each norm: its name, its error over all layers before, and that of rounding alone."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of the trainer with the engine: the verdicts on both of them, the first operator with an
    unexpected error, and the cause of the error."""

    sides: Mapping[Side, Judged]
    numbers: Numbers | None
    """None if no log-probabilities of the trainer or of the engine were recorded."""
    first: Judgement | None = None
    side: Side | None = None
    """The side of `first`."""
    cause: Cause | None = None
    remaining: Numbers | None = None
    """The differences that remain between `side` and a reference that computes with the cause in the dtype of
    `side`."""


def compare(
    model: Any,
    trainer: Recording,
    engine: Recording,
    sampling: Sampling | None = None,
    reruns: Mapping[Reason, Recording] | None = None,
    graphs: Recording | None = None,
) -> Comparison:
    """Compare both the trainer and the engine with a run of the trainer's model on the host, and look for the cause of
    the first difference.

    `reruns` and `graphs` are recordings of the engine with one setting changed. `graphs` is also compared with the
    model's run on the host.

    Raises:
        RolloutError: no operator of the trainer or no operator of the engine was recorded.
    """
    sampling = sampling or Sampling()
    recordings = {Side.TRAINER: trainer, Side.ENGINE: engine, **({Side.GRAPHS: graphs} if graphs else {})}
    pairs: dict[torch.dtype, Pair] = {}
    judged, firsts = {}, {}
    for side, recording in recordings.items():
        batch, dtype = recording.batch, recording.dtype
        if dtype not in pairs:
            made = (Reference(model, batch, each, sampling.temperature) for each in (torch.float64, dtype))
            pairs[dtype] = Pair(*made)
        pair = pairs[dtype].on(batch)
        found = list(judge(recording, pair))
        if not found:
            raise RolloutError(
                subject=_("the recording of the {side}").format(side=side.value),
                expected=_("inputs and outputs of the model's operators"),
                found=_("{count} values, and no operator with both its inputs and its outputs").format(
                    count=len(recording.values)
                ),
                fix=_("use versions of the engine and the trainer that verl-npu supports for this comparison"),
            )
        judged[side] = Judged(recording, found, _streams(recording, pair))
        bad = next((each for each in found if each.is_bad), None)
        if bad is not None:
            # A side may have recorded fewer operators than another one.
            firsts[side] = list(operators(pair.exact.decoder)).index(bad.operator), bad
    both = trainer.values.get(LOGPROBS), engine.values.get(LOGPROBS)
    apart = numbers(*both) if both[0] is not None and both[1] is not None else None
    if not firsts:
        return Comparison(judged, apart)
    # With graphs, only the outputs are known.
    side = min(firsts, key=lambda each: (each is Side.GRAPHS, firsts[each][0]))
    bad, recording = firsts[side][1], recordings[side]
    pair = pairs[recording.dtype].on(recording.batch)
    again = {Reason.GRAPHS: engine} if side is Side.GRAPHS else reruns if side is Side.ENGINE else None
    cause = cause_of(bad, recording, pair, sampling, again)
    if cause is not None and cause.reason is not Reason.DTYPE:
        # Another function explains the error, however small it is.
        bad = replace(bad, verdict=Verdict.DIFFERENT)
    remaining = None
    # Only the first layer knows the keys of pad tokens.
    known = cause is not None and cause.edit is not None and cause.reason is not Reason.PADDING
    if cause is not None and known and LOGPROBS in recording.values:
        with exchanged(cause.whole or cause.edit, pair.rounded):
            remaining = numbers(pair.rounded.logprobs(), recording.values[LOGPROBS])
    return Comparison(judged, apart, bad, side, cause, remaining)


def _streams(recording: Recording, pair: Pair) -> list[Mapping[str, object]]:
    exact, rounded = (each.stream() for each in pair)
    return [
        {
            "name": name.removesuffix(":in"),
            "error": float((recording.values[name].double() - right).norm() / right.norm()),
            "rounding": float((rounded[name].double() - right).norm() / right.norm()),
        }
        for name, right in exact.items()
        if name.endswith("norm:in") and name in recording.values
    ]


def content(made: Comparison, not_shown: Sequence[str]) -> dict[str, object]:
    """Return a comparison as a JSON-serializable object. `not_shown` lists the aspects of the job that the comparison
    does not cover."""
    bad, cause = made.first, made.cause
    missing = [
        _("{side}: {name} was not recorded").format(side=side.value, name=name)
        for side, judged in made.sides.items()
        for name in ("norm:out", LOGPROBS)
        if name not in judged.recording.values
    ]
    return {
        "first": bad and made.side and {"side": made.side.value, **_judgement(bad)},
        "cause": cause and {"reason": cause.reason.value, "said": cause.said},
        "numbers": made.numbers and asdict(made.numbers),
        "remaining": made.remaining and asdict(made.remaining),
        "margin": MARGIN,
        "sides": {side.value: _side(judged) for side, judged in made.sides.items()},
        "not_shown": [*not_shown, *missing],
    }


def _side(judged: Judged) -> dict[str, object]:
    return {
        "dtype": str(judged.recording.dtype).removeprefix("torch."),
        "operators": [_judgement(each) for each in judged.operators],
        "streams": judged.streams,
    }


def _judgement(each: Judgement) -> dict[str, object]:
    names = {"operator": each.operator.name, "kind": each.operator.kind.value, "verdict": each.verdict.value}
    return names | {name: getattr(each, name) for name in ("error", "rounding", "ratio", "tokens", "flips")}
