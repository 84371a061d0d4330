"""Tokens go to their experts and back: permuted, multiplied in groups, unpermuted. Weights are not copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .grouped import grouped_linear
from .operator import operator

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Weights", "has_operators", "routed"]

_OPERATORS = ("npu_grouped_matmul", "npu_swiglu")
_OTHERWISE = "plain torch sorts the tokens instead"


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of all experts, as they are in memory."""

    up: tuple[Sequence[Tensor], ...]
    """Gate and up: two sequences if they are separate, one if each weight holds both."""
    down: Sequence[Tensor]
    experts: int
    transposed: bool
    """Whether a matrix is [outputs, inputs], as that of a Linear."""

    def go_with(self, tokens: Tensor) -> bool:
        """Return whether the grouped product can multiply `tokens` by these weights.

        It needs one dtype. Autocast casts both; that copies the weights, but the loop over experts does so as well.
        """
        import torch

        if torch.is_autocast_enabled(tokens.device.type):
            return True
        return all(weight.dtype == tokens.dtype for part in (*self.up, self.down) for weight in part)


def has_operators(tokens: Tensor) -> bool:
    """Return whether `tokens` are on an NPU and this torch_npu has the operators that are needed."""
    # All are looked up, so that the user is told of each one that is missing.
    return None not in [operator(name, tokens) for name in _OPERATORS]


def routed(tokens: Tensor, selected: Tensor, routing: Tensor, weights: Weights) -> Tensor:
    """tokens [tokens, width], selected and routing [tokens, chosen] -> [tokens, width] in the dtype of `tokens`."""
    import torch
    import torch_npu

    device = tokens.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tokens.dtype
    # Counted by adding: for bincount and one_hot the host would wait until the device has computed the largest index.
    chosen = selected.reshape(-1)
    counts = torch.zeros(weights.experts, dtype=torch.int64, device=tokens.device)
    ends = counts.scatter_add_(0, chosen, torch.ones_like(chosen)).cumsum(0)
    permuted, places = _permuted(tokens.to(dtype), selected)
    parts = [
        grouped_linear(permuted, ends, [w.to(dtype) for w in part], transposed=weights.transposed)
        for part in weights.up
    ]
    hidden = torch_npu.npu_swiglu(parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1), dim=-1)
    out = grouped_linear(hidden, ends, [w.to(dtype) for w in weights.down], transposed=weights.transposed)
    return _mixed(out.to(tokens.dtype), places, routing)


def _permuted(tokens: Tensor, selected: Tensor) -> tuple[Tensor, Tensor]:
    """tokens [tokens, width] -> (copies in the order of their experts [tokens * chosen, width], where each went)."""
    import torch
    import torch_npu

    # From torch_npu 2.7.1 on it has a gradient.
    if operator("npu_moe_token_permute", tokens, _OTHERWISE) is not None:
        made: tuple[Tensor, Tensor] = torch_npu.npu_moe_token_permute(tokens, selected.to(torch.int32))
        return made
    # NPUs sort floats much faster than integers, and the numbers of experts are exact in them.
    order = torch.argsort(selected.reshape(-1).float(), stable=True)
    rows = torch.arange(order.numel(), device=order.device)
    return tokens.index_select(0, order // selected.shape[1]), torch.empty_like(order).scatter_(0, order, rows)


def _mixed(rows: Tensor, places: Tensor, routing: Tensor) -> Tensor:
    """rows [tokens * chosen, width] back in place, weighted by routing [tokens, chosen] and added: [tokens, width]."""
    import torch_npu

    if operator("npu_moe_token_unpermute", rows, _OTHERWISE) is not None:
        made: Tensor = torch_npu.npu_moe_token_unpermute(rows, places, probs=routing)
        return made
    copies = rows.index_select(0, places.long()).unflatten(0, tuple(routing.shape))
    return (copies * routing.unsqueeze(-1)).sum(dim=1)
