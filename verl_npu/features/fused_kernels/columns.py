"""The columns of the vocabulary that are left over when it is divided into the parts that verl's fused loss takes.

Upstream's kernel goes through whole parts. Up to v0.7.0 it takes what lies behind the vocabulary in the last part for
columns whose logits are zero, and counts them. So the kernel gets whole parts alone, where it counts rightly, and what
is left over is computed here and added.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FunctionType
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    Loss: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
    """Log probabilities, entropies, and per token the highest logit, the sum of exp(logit - highest), and the mean of
    the logits, which the backward pass needs."""

PART = 1024
"""Columns: upstream's `vocab_per_split`."""
_TOKENS = 2048
"""At once: their logits and their hidden states are held in float32."""
_LAYERS = 4
"""Of Triton's decorators around a kernel's function, at most."""
_NONE, _SUM = 0, 1
"""Upstream's numbers of reductions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the fused loss is called with."""

    hidden: Tensor
    weight: Tensor
    labels: Tensor
    reduction: int
    temperature: float
    group: ProcessGroup | None


def counts_beyond(kernel: object, vocabulary: int) -> bool:
    """Whether upstream's kernel counts columns behind the vocabulary: it has no `where` that masks them."""
    for _ in range(_LAYERS):
        kernel = getattr(kernel, "fn", kernel)
    return vocabulary % PART != 0 and not (isinstance(kernel, FunctionType) and ".where(" in inspect.getsource(kernel))


def without_columns_beyond(compute: Callable[[Asked], Loss], asked: Asked) -> Loss:
    """Return the loss of `asked`; `compute` is upstream's, which is right for a vocabulary of whole parts."""
    import torch
    from torch import distributed

    rank = 0 if asked.group is None else distributed.get_rank(asked.group)
    size = asked.weight.shape[0]
    own, whole = asked.labels - rank * size, size - size % PART
    highest, total, weighted, chosen = _of_whole(compute, asked, own, whole, rank)
    left_highest, left = _left_over(asked, own - whole, whole)
    top = torch.maximum(highest, left_highest)
    if asked.group is not None:
        distributed.all_reduce(top, op=distributed.ReduceOp.MAX, group=asked.group)
    left[:2] *= (left_highest - top).exp()
    if asked.group is not None:
        distributed.all_reduce(left, group=asked.group)
    scale = (highest - top).exp()
    total = total * scale + left[0]
    mean = (weighted * scale + left[1]) / total
    normaliser = total.log() + top
    logprobs = torch.where(left[3] > 0, left[2], chosen) - normaliser
    if asked.reduction != _NONE:
        logprobs = logprobs.sum() if asked.reduction == _SUM else logprobs.mean()
    return logprobs, normaliser - mean, top, total, mean


def _of_whole(
    compute: Callable[[Asked], Loss], asked: Asked, own: Tensor, whole: int, rank: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Upstream's answer for the whole parts: highest, sum, sum of weighted logits, and the labels' logits."""
    import torch

    if not whole:
        nothing = torch.zeros(own.shape, dtype=torch.float32, device=own.device)
        # Beside a highest logit of zero, logits far below it would vanish.
        return torch.full_like(nothing, -torch.inf), nothing, nothing, nothing
    # A label of another rank's, or of what is left over, is none of these columns.
    labels = torch.where((own >= 0) & (own < whole), own + rank * whole, -1)
    part = replace(asked, weight=asked.weight[:whole], labels=labels, reduction=_NONE)
    logprobs, _entropy, highest, total, mean = compute(part)
    return highest, total, mean * total, logprobs + highest + total.log()


def _left_over(asked: Asked, label: Tensor, whole: int) -> tuple[Tensor, Tensor]:
    """Of the columns that are left over, per token: the highest logit; and the sum of exp(logit - highest), the same
    times the logit, the label's logit, and whether the label is one of them."""
    import torch

    columns = asked.weight[whole:].float().T
    highest, sums = [], []
    for hidden, wanted in zip(asked.hidden.split(_TOKENS), label.split(_TOKENS), strict=True):
        logits = (hidden.float() @ columns) / asked.temperature
        top = logits.amax(-1)
        weights = (logits - top[:, None]).exp()
        inside = ((wanted >= 0) & (wanted < logits.shape[-1])).to(logits.dtype)
        own = logits.gather(-1, wanted.clamp(0, logits.shape[-1] - 1)[:, None])[:, 0]
        highest.append(top)
        sums.append(torch.stack([weights.sum(-1), (weights * logits).sum(-1), own * inside, inside]))
    return torch.cat(highest), torch.cat(sums, -1)
