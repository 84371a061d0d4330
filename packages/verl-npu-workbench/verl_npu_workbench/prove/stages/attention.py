"""Checks attention with `npu_fusion_attention`: packed, padded, with grouped heads, and with the heads of one Ulysses
rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from .cases import Case, Formula, floats
from .operators import judge
from .setup import Setup

if TYPE_CHECKING:
    from torch import Tensor

_TEMPLATE = 2048
"""The width of the mask that the operator requires for causal attention. Only the mask's lower triangle matters."""
_CAUSAL = 3
_PACKED = (5, 1, 8, 34, 16)


def run(setup: Setup) -> None:
    """Check attention with each shape and each dtype."""
    setup.npus()
    import torch

    torch.npu.set_device(0)
    meaning = "tokens would attend to the wrong tokens, or with wrong weights"
    for case in _cases():
        for dtype in case.dtypes:
            setup.record.check(f"{case.name} {dtype}", partial(judge, setup, case, dtype), meaning)


def _cases() -> Iterator[Case]:
    for heads, groups, width in ((4, 4, 64), (8, 2, 64), (4, 1, 128)):
        yield _packed(f"packed, {heads} heads over {groups}, width {width}", heads, groups, width, _PACKED)
    yield _packed("one long sequence, 4 heads over 2", 4, 2, 64, (192,))
    # With Ulysses, each rank has all tokens and a part of the heads; an indivisible length is padded at the end.
    yield _packed("Ulysses' half of 8 heads over 2, padded to an even length", 4, 1, 64, (*_PACKED[:-1], 15, 1))
    yield _padded("padded on the left, 4 heads over 2", left=True)
    yield _padded("padded on the right, 4 heads over 2", left=False)
    yield _whole("pictures: packed, not causal")


def _attention(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Tensor:
    """Compute attention of q [batch, heads, rows, width] with k and v, which have fewer heads.

    `kept` [batch or 1, 1, rows, columns] is true where a row attends to a column.
    """
    times = q.shape[1] // k.shape[1]
    k, v = (each.repeat_interleave(times, 1) for each in (k, v))
    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    return scores.masked_fill(~kept, float("-inf")).softmax(-1) @ v


def _blocks(lengths: Sequence[int], causal: bool) -> Tensor:
    import torch

    ones = [torch.ones(length, length, dtype=torch.bool) for length in lengths]
    return torch.block_diag(*(each.tril() if causal else each for each in ones)).bool()[None, None]


def _packed_formula(lengths: Sequence[int], causal: bool) -> Formula:
    def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (each.transpose(0, 1)[None] for each in (q, k, v))
        return _attention(q, k, v, _blocks(lengths, causal).to(q.device))[0].transpose(0, 1)

    return formula


def _packed(name: str, heads: int, groups: int, width: int, lengths: Sequence[int], causal: bool = True) -> Case:
    ends, rows = list(accumulate(lengths)), sum(lengths)

    def call(operator: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        masked = {"atten_mask": _template(q), "sparse_mode": _CAUSAL} if causal else {}
        made: Tensor = operator(
            q, k, v, heads, "TND", scale=width**-0.5, actual_seq_qlen=ends, actual_seq_kvlen=ends, **masked
        )[0]
        return made

    return Case(
        name=name,
        operator="npu_fusion_attention",
        inputs=(floats(rows, heads, width), floats(rows, groups, width), floats(rows, groups, width)),
        formula=_packed_formula(lengths, causal),
        call=call,
        dtypes=("float16", "bfloat16"),
        used_by="attention",
    )


def _whole(name: str) -> Case:
    return _packed(name, 2, 2, 80, (16, 4, 36), causal=False)


def _template(like: Tensor) -> Tensor:
    import torch

    return torch.ones(_TEMPLATE, _TEMPLATE, dtype=torch.bool, device=like.device).triu(1)


def _padded(name: str, *, left: bool) -> Case:
    batch, rows, heads, groups, width = 3, 24, 4, 2, 64
    dropped = (7, 0, 12)

    def kept() -> Tensor:
        import torch

        causal = torch.ones(rows, rows, dtype=torch.bool).tril()
        made = causal.repeat(batch, 1, 1, 1)
        for row, count in enumerate(dropped):
            made[row, :, :, slice(0, count) if left else slice(rows - count, rows)] = False
        # A row of padding sees itself: its result is thrown away, but must not be NaN.
        return made | torch.eye(rows, dtype=torch.bool)

    def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _attention(q, k, v, kept().to(q.device))

    def call(operator: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        made: Tensor = operator(
            q, k, v, heads, "BNSD", scale=width**-0.5, atten_mask=~kept().to(q.device), sparse_mode=0
        )[0]
        return made

    return Case(
        name=name,
        operator="npu_fusion_attention",
        inputs=(
            floats(batch, heads, rows, width),
            floats(batch, groups, rows, width),
            floats(batch, groups, rows, width),
        ),
        formula=formula,
        call=call,
        dtypes=("float16", "bfloat16"),
        used_by="attention",
    )
