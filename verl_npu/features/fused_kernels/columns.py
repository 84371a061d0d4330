"""The fused loss for a vocabulary whose size is not a multiple of 1024.

Upstream's kernel processes the vocabulary in parts of 1024 columns. Up to v0.7.0, it counts the columns of the last
part that lie beyond the vocabulary as logits of zero. So we give the kernel only the whole parts, for which its result
is correct. We compute the remaining columns here, and add them to the result.
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
    """Log-probabilities, entropies, and three values per token for the backward pass: the highest logit, the sum of
    exp(logit - highest), and the mean of the logits."""

PART = 1024
"""The number of columns in a part: upstream's `vocab_per_split`."""
_TOKENS_AT_ONCE = 2048
"""The number of tokens whose logits and hidden states we hold in float32 at the same time."""
_MAX_DECORATORS = 4
"""The maximum number of Triton's decorators around a kernel's function."""
_NONE, _SUM = 0, 1
"""Upstream's numbers for two of its reductions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossArguments:
    """The arguments of one call of the fused loss."""

    hidden: Tensor
    weight: Tensor
    labels: Tensor
    reduction: int
    temperature: float
    group: ProcessGroup | None


def counts_beyond_vocabulary(kernel: object, vocabulary: int) -> bool:
    """Return whether upstream's kernel counts columns beyond the vocabulary. The kernel does so if no `where` in its
    source masks these columns."""
    for _ in range(_MAX_DECORATORS):
        kernel = getattr(kernel, "fn", kernel)
    return vocabulary % PART != 0 and not (isinstance(kernel, FunctionType) and ".where(" in inspect.getsource(kernel))


def loss_within_vocabulary(compute: Callable[[LossArguments], Loss], arguments: LossArguments) -> Loss:
    """Return the fused loss. `compute` is upstream's loss, which is correct only if the parts into which the kernel
    divides the vocabulary are all full."""
    import torch
    from torch import distributed

    rank = 0 if arguments.group is None else distributed.get_rank(arguments.group)
    size = arguments.weight.shape[0]
    own, whole = arguments.labels - rank * size, size - size % PART
    highest, total, weighted, chosen = _whole_parts(compute, arguments, own, whole, rank)
    left_highest, left = _remaining_columns(arguments, own - whole, whole)
    top = torch.maximum(highest, left_highest)
    if arguments.group is not None:
        distributed.all_reduce(top, op=distributed.ReduceOp.MAX, group=arguments.group)
    left[:2] *= (left_highest - top).exp()
    if arguments.group is not None:
        distributed.all_reduce(left, group=arguments.group)
    scale = (highest - top).exp()
    total = total * scale + left[0]
    mean = (weighted * scale + left[1]) / total
    normaliser = total.log() + top
    logprobs = torch.where(left[3] > 0, left[2], chosen) - normaliser
    if arguments.reduction != _NONE:
        logprobs = logprobs.sum() if arguments.reduction == _SUM else logprobs.mean()
    return logprobs, normaliser - mean, top, total, mean


def _whole_parts(
    compute: Callable[[LossArguments], Loss], arguments: LossArguments, own: Tensor, whole: int, rank: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return upstream's result for the whole parts, as four values per token.

    They are the highest logit, the sum of exp(logit - highest), the sum of exp(logit - highest) * logit, and the logit
    of the label.
    """
    import torch

    if not whole:
        nothing = torch.zeros(own.shape, dtype=torch.float32, device=own.device)
        # With zero as the highest logit, remaining logits far below zero would vanish.
        return torch.full_like(nothing, -torch.inf), nothing, nothing, nothing
    # The label of another rank, or one in the remaining columns, is outside these columns.
    labels = torch.where((own >= 0) & (own < whole), own + rank * whole, -1)
    part = replace(arguments, weight=arguments.weight[:whole], labels=labels, reduction=_NONE)
    logprobs, _entropy, highest, total, mean = compute(part)
    return highest, total, mean * total, logprobs + highest + total.log()


def _remaining_columns(arguments: LossArguments, label: Tensor, whole: int) -> tuple[Tensor, Tensor]:
    """Return the result for the columns after the whole parts.

    The first tensor has each token's highest logit. The second tensor, [4, tokens], has for each token the sum of
    exp(logit - highest), the sum of exp(logit - highest) * logit, the logit of the label, and 1 if the label is in
    these columns.
    """
    import torch

    columns = arguments.weight[whole:].float().T
    highest, sums = [], []
    for hidden, wanted in zip(arguments.hidden.split(_TOKENS_AT_ONCE), label.split(_TOKENS_AT_ONCE), strict=True):
        logits = (hidden.float() @ columns) / arguments.temperature
        top = logits.amax(-1)
        weights = (logits - top[:, None]).exp()
        inside = ((wanted >= 0) & (wanted < logits.shape[-1])).to(logits.dtype)
        own = logits.gather(-1, wanted.clamp(0, logits.shape[-1] - 1)[:, None])[:, 0]
        highest.append(top)
        sums.append(torch.stack([weights.sum(-1), (weights * logits).sum(-1), own * inside, inside]))
    return torch.cat(highest), torch.cat(sums, -1)
