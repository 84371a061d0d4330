"""A grouped matrix product with its backward, which copies no weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from ...reporting import report

if TYPE_CHECKING:
    import torch
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


def _products_of_columns(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """Multiply columns of `left` [m, rows] and rows of `right` [rows, n] in groups -> [groups, m, n]."""
    import torch

    if _operator_groups_columns(left.dtype, left.device):
        return _grouped_columns(left, right, ends)
    bounds = pairwise([0, *ends.tolist()])
    return torch.stack([left[:, start:end] @ right[start:end] for start, end in bounds])


def _grouped_columns(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    import torch_npu

    made: Tensor = torch_npu.npu_grouped_matmul([left], [right], group_list=ends, split_item=3, group_type=2)[0]
    return made


@lru_cache(maxsize=16)
def _operator_groups_columns(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the installed torch_npu takes group_type=2: some versions refuse it, or give a sum over the groups.

    Tried once, because the schema of the operator is the same in all of them.
    """
    import torch

    ones = torch.ones(16, 16, dtype=dtype, device=device)
    ends = torch.tensor([6, 16], dtype=torch.int64, device=device)
    try:
        made = _grouped_columns(ones.transpose(0, 1), ones, ends)
        found = f"gives a result of the shape {tuple(made.shape)}"
        if made.shape == (2, 16, 16) and made[:, 0, 0].tolist() == [6, 10]:
            return True
    except RuntimeError as error:
        found = f"refuses it: {str(error).splitlines()[0]}" if str(error) else "refuses it"
    import torch_npu

    report(
        f"torch_npu {torch_npu.__version__} {found} (npu_grouped_matmul with group_type=2): the gradients of experts "
        "are computed one by one, which is slower"
    )
    return False


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
                stacked = _products_of_columns(left.transpose(0, 1), right, ends)
                for_weights = [stacked] if len(weights) == 1 and weights[0].dim() == 3 else list(stacked.unbind(0))
            return for_x, None, None, *for_weights

    made: Product = GroupedLinear
    return made
