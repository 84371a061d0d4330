"""A grouped matrix product with its backward, which copies no weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["grouped_linear"]


class Context(Protocol):
    """The context of an autograd function."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]
    transposed: bool

    def save_for_backward(self, *tensors: Tensor) -> None: ...


class Product(Protocol):
    """The autograd function of this module."""

    def apply(self, x: Tensor, ends: Tensor, transposed: bool, *weights: Tensor) -> Tensor: ...


def grouped_linear(x: Tensor, ends: Tensor, weights: Sequence[Tensor], *, transposed: bool) -> Tensor:
    """Multiply rows of x in groups, each group by its own matrix; differentiable in x and the weights.

    x [rows, inputs], ends int64 [groups] (where each group ends), weights: one [groups, inputs, outputs], or `groups`
    of [inputs, outputs]; `transposed` if they are [.., outputs, inputs], as those of a Linear -> [rows, outputs]. A
    group may be empty; the gradient of its weight is zero then.
    """
    return _product().apply(x, ends, transposed, *weights)


@lru_cache(maxsize=1)
def _product() -> Product:
    import torch
    import torch_npu

    def product(x: Tensor, weights: Sequence[Tensor], ends: Tensor) -> Tensor:
        # group_list_type and newer keywords are left out: the oldest torch_npu takes the ends of the groups only.
        made: Tensor = torch_npu.npu_grouped_matmul([x], list(weights), group_list=ends, split_item=2, group_type=0)[0]
        return made

    class GroupedLinear(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Context, x: Tensor, ends: Tensor, transposed: bool, *weights: Tensor) -> Tensor:
            ctx.save_for_backward(x, ends, *weights)
            ctx.transposed = transposed
            return product(x, [w.transpose(-1, -2) for w in weights] if transposed else weights, ends)

        @staticmethod
        def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor | None, ...]:
            x, ends, *weights = ctx.saved_tensors
            gradient = gradient.contiguous()
            for_x, for_weights = None, [None] * len(weights)
            if ctx.needs_input_grad[0]:
                for_x = product(gradient, weights if ctx.transposed else [w.transpose(-1, -2) for w in weights], ends)
            if any(ctx.needs_input_grad[3:]):
                left, right = (gradient, x) if ctx.transposed else (x, gradient)
                (stacked,) = torch_npu.npu_grouped_matmul(
                    [left.transpose(0, 1)], [right], group_list=ends, split_item=3, group_type=2
                )
                for_weights = [stacked] if len(weights) == 1 and weights[0].dim() == 3 else list(stacked.unbind(0))
            return for_x, None, None, *for_weights

    made: Product = GroupedLinear
    return made
