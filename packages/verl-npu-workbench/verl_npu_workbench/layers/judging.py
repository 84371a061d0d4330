"""Judges, by its forward error, each operator of one side (trainer or engine) of a comparison: is the error only
rounding?

The error is the difference from the reference in float64, which computes from the side's own inputs. The reference in
the side's dtype shows how much of it is rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import torch

from verl_npu.language import gettext as _

from .recording import HEAD, Batch, Recording
from .reference import Kind, Operator, Reference, causal, operators

MARGIN = 4.0
"""How many times the measured rounding an error may be.

Independent roundings add up in squares. So an implementation may round a value of the result's size fifteen more times
than transformers does, for example between fused or divided steps, and stay within four times. Faults that are smaller
than that also change a result less than another implementation does.
"""
_NARROWER = {torch.float32: torch.bfloat16, torch.float16: torch.bfloat16, torch.bfloat16: torch.float8_e4m3fn}
_MANY = 16
"""With at least this many features, rounding is measured for each row. With fewer, the largest of all rows is used."""


class Verdict(Enum):
    """The verdict on an operator's error, that is, the likely origin of the error."""

    EXPECTED = _("as expected")
    LARGER = _("larger than rounding")
    """Larger than rounding in this dtype, but not than rounding in the next narrower one."""
    DIFFERENT = _("different")
    FLIPS = _("flips")
    """Rounding decides which experts are chosen for some tokens; the other tokens are as expected."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one operator on one side of the comparison."""

    operator: Operator
    verdict: Verdict
    error: float
    """The error relative to the output, over all tokens."""
    rounding: float
    """The error of the reference in the side's dtype, relative to the output."""
    ratio: float
    """The largest error of a token, in units of its rounding."""
    beyond: torch.Tensor = field(compare=False)
    """Marks the tokens beyond the margin."""
    flips: Mapping[str, float] | None = None
    """The tokens whose output differs by more than rounding, and whose scores are so close that rounding may choose
    another expert: their number, `flipped`, and the largest distance of the last chosen score and the next one,
    `margin`."""

    @property
    def tokens(self) -> float:
        """The fraction of tokens whose error is larger than rounding can explain."""
        return float(self.beyond.double().mean())

    @property
    def is_bad(self) -> bool:
        """Whether neither rounding nor a different selection of experts explains the error."""
        return self.verdict in (Verdict.LARGER, Verdict.DIFFERENT)


class Pair(NamedTuple):
    """Two references for one side: the same model in float64 and in the side's dtype, with the trainer's weights."""

    exact: Reference
    rounded: Reference

    def on(self, batch: Batch) -> Pair:
        """Return references that use the same models for another batch."""
        return Pair(*(each.on(batch) for each in self))


_KNOWN = {Kind.MODEL: "norm:in", Kind.FUSED: f"{HEAD}:out"}
"""Values that make operators with more than one module superfluous."""


def judge(recording: Recording, pair: Pair) -> Iterator[Judgement]:
    """Judge each operator whose inputs and outputs were recorded, in execution order.

    If an operator of a block was not recorded, the block is also judged as a whole. If the residual stream was not
    recorded, all layers are also judged as a whole. If the logits were not recorded, the head and the computation of
    the log-probabilities are judged as one operator.
    """
    values = recording.values
    all_operators = list(operators(pair.exact.decoder))
    seen = [each for each in all_operators if all(name in values for name in (*each.given, *each.made))]
    missing = [each.name for each in all_operators if each not in seen]
    for operator in seen:
        if operator.kind in (Kind.BLOCK, Kind.MLP) and not any(name.startswith(operator.name) for name in missing):
            continue
        if _KNOWN.get(operator.kind) not in values:
            yield judge_one(operator, recording, pair)


def judge_one(operator: Operator, recording: Recording, pair: Pair) -> Judgement:
    """Compare the recorded output of one operator with both references, and return the verdict."""
    exact, rounded = (each.compute(operator, recording.values).double() for each in pair)
    made = recording.together(operator.made).double()
    near, gap = torch.zeros(len(made), dtype=torch.bool), torch.zeros(len(made))
    if operator.kind is Kind.EXPERTS:
        near, gap = _near(operator.name, [recording.values] * 2, pair, ~near)
    elif operator.kind is Kind.MODEL:
        near, gap = _near_in_any_layer(pair)
    error, rounding, size = (each.norm(dim=1) for each in (made - exact, rounded - exact, exact))
    usual = rounding if bool(near.all()) else rounding[~near]
    # A row may have been lucky.
    usual = usual.max() if made.shape[1] < _MANY else usual.median()
    floor = torch.maximum(rounding, usual)
    if made.shape[1] >= _MANY and bool(near.any()):
        floor = usual.expand_as(rounding)
    # The output itself is rounded by half a unit in the last place, but not more coarsely than the side computes.
    own = torch.finfo(recording.dtype).eps
    unit = max(min(own, torch.finfo(recording.values[name].dtype).eps) / 2 for name in operator.made)
    ratios = error / torch.maximum(floor, unit * size).clamp(min=torch.finfo(torch.float64).tiny)
    ratios = ratios.nan_to_num(nan=torch.inf)
    ratio = 0.0 if bool(near.all()) else float(ratios[~near].max())
    narrower = torch.finfo(_NARROWER[recording.dtype]).eps / own
    flips, verdict = None, Verdict.DIFFERENT
    if ratio <= MARGIN * narrower:
        verdict = Verdict.LARGER if ratio > MARGIN else Verdict.EXPECTED
    if operator.kind is Kind.EXPERTS or bool(near.any()):
        flipped = near & (ratios > MARGIN)
        flips = {"flipped": int(flipped.sum()), "margin": float(gap[flipped].max()) if bool(flipped.any()) else 0.0}
        if verdict is Verdict.EXPECTED and flips["flipped"]:
            verdict = Verdict.FLIPS
    whole = float(exact.norm()) or 1.0
    parts = float((made - exact).norm()) / whole, float((rounded - exact).norm()) / whole
    return Judgement(operator, verdict, *parts, ratio, ratios > MARGIN, flips)


def _near_in_any_layer(pair: Pair) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens whose experts rounding may decide in any layer, and the tokens that attend to such a token."""
    rows, places = pair.exact.rows, pair.exact.places
    near, gap = torch.zeros(len(rows), dtype=torch.bool), torch.full((len(rows),), torch.inf, dtype=torch.float64)
    values = [each.stream() for each in pair]
    for name in [each.removesuffix(":in") for each in values[0] if each.endswith(".mlp:in")]:
        if bool(near.all()):
            break
        # Tokens that are near in an earlier layer would make the noise look larger.
        found, apart = _near(name, values, pair, ~near)
        gap = torch.minimum(gap, apart)
        near |= found
        near |= (causal(rows, places) & near).any(dim=1)
    return near, gap


def _near(
    name: str, values: Sequence[Mapping[str, torch.Tensor]], pair: Pair, of: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens whose experts rounding may decide, and how far the scores of each are apart.

    `values` have the input of the experts for each reference. The noise is that of the tokens `of`.
    """
    exact, rounded = (_scores(name, each, reference) for each, reference in zip(values, pair, strict=True))
    config = pair.exact.decoder.config
    # Two scores with independent errors are compared.
    noise = 2**0.5 * MARGIN * float((exact - rounded)[of].square().mean().sqrt())
    groups, kept = getattr(config, "n_group", None) or 1, getattr(config, "topk_group", None) or 1
    gap = torch.full((len(exact),), torch.inf, dtype=torch.float64)
    if groups > kept:
        within = exact.unflatten(1, (groups, -1))
        best = within.topk(2, dim=-1)[0].sum(-1)
        gap = _gap(best, kept) / 2**0.5
        mask = torch.zeros_like(best, dtype=torch.bool).scatter_(1, best.topk(kept)[1], value=True)
        exact = within.masked_fill(~mask[..., None], -torch.inf).flatten(1)
    gap = torch.minimum(gap, _gap(exact, config.num_experts_per_tok))
    return gap <= noise, gap


def _gap(scores: torch.Tensor, count: int) -> torch.Tensor:
    if count >= scores.shape[1]:
        return torch.full((len(scores),), torch.inf, dtype=scores.dtype)
    best = scores.topk(count + 1, dim=-1)[0]
    return best[:, count - 1] - best[:, count]


def _scores(name: str, values: Mapping[str, torch.Tensor], reference: Reference) -> torch.Tensor:
    """Return the scores that determine each token's experts."""
    router = Operator(f"{name}.gate", Kind.ROUTER, (f"{name}:in",), ())
    logits = reference.compute(router, values).double()
    bias = getattr(reference.module(router.name), "e_score_correction_bias", None)
    return logits if bias is None else logits.sigmoid() + bias
