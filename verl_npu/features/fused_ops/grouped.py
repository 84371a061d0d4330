"""Mixtures of experts with torch_npu's token permutation and grouped matrix product. The weights are not copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ...reporting import report
from . import is_plain, operator
from .layers import Activation, is_silu

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Forward: TypeAlias = "Callable[..., Tensor]"


class Context(Protocol):
    """The context of an autograd function."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]
    transposed: bool

    def save_for_backward(self, *tensors: Tensor) -> None: ...


def grouped_linear(x: Tensor, ends: Tensor, weights: Sequence[Tensor], *, transposed: bool) -> Tensor:
    """Multiply the rows of x in groups, with one matrix for each group. Differentiable in x and the weights.

    Shapes: x [rows, inputs]; ends int64 [groups], the end row of each group; weights [groups, inputs, outputs], or a
    list of tensors [inputs, outputs]; result [rows, outputs]. With `transposed`, the last two dimensions of the
    weights are [outputs, inputs], as in a Linear. A group may be empty; then the gradient of its weight is zero.
    """
    return _product()(x, ends, transposed, *weights)


def _grouped_column_products(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """Multiply `left` [m, rows] by `right` [rows, n], separately for each group of rows. Returns [groups, m, n]."""
    import torch

    if _supports_group_type_2(left.dtype, left.device):
        return _grouped_columns(left, right, ends)
    bounds = pairwise([0, *ends.tolist()])
    return torch.stack([left[:, start:end] @ right[start:end] for start, end in bounds])


def _grouped_columns(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    import torch_npu

    made: Tensor = torch_npu.npu_grouped_matmul([left], [right], group_list=ends, split_item=3, group_type=2)[0]
    return made


@lru_cache(maxsize=16)
def _supports_group_type_2(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether the installed torch_npu supports group_type=2. Some versions reject it, and some sum over the
    groups.

    The function calls the operator once to find out, because the operator's schema is the same in all versions.
    """
    import torch

    ones = torch.ones(16, 16, dtype=dtype, device=device)
    ends = torch.tensor([6, 16], dtype=torch.int64, device=device)
    try:
        made = _grouped_columns(ones.transpose(0, 1), ones, ends)
        found = f"it returns a result of the shape {tuple(made.shape)}"
        if made.shape == (2, 16, 16) and made[:, 0, 0].tolist() == [6, 10]:
            return True
    except RuntimeError as error:
        found = str(error).splitlines()[0] if str(error) else "it refuses the call"
    import torch_npu

    report(
        f"npu_grouped_matmul of torch_npu {torch_npu.__version__} does not support group_type=2 ({found}): the "
        "gradients of experts are computed one by one, which is slower"
    )
    return False


@lru_cache(maxsize=1)
def _product() -> Forward:
    """Return the autograd function for `grouped_linear`. Its arguments are x, ends, transposed, *weights."""
    import torch
    import torch_npu

    def product(x: Tensor, weights: Sequence[Tensor], ends: Tensor) -> Tensor:
        # We pass no group_list_type and no newer keyword: the oldest torch_npu accepts only the ends of the groups.
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
                stacked = _grouped_column_products(left.transpose(0, 1), right, ends)
                for_weights = [stacked] if len(weights) == 1 and weights[0].dim() == 3 else list(stacked.unbind(0))
            return for_x, None, None, *for_weights

    made: Forward = GroupedLinear.apply
    return made


_OPERATORS = ("npu_grouped_matmul", "npu_swiglu")
_FALLBACK = "plain torch sorts the tokens instead"


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of all experts, in their memory layout."""

    up: tuple[Sequence[Tensor], ...]
    """The gate and up projections: two sequences if they are separate, one sequence if each tensor holds both."""
    down: Sequence[Tensor]
    experts: int
    transposed: bool
    """Whether each matrix is [outputs, inputs], as in a Linear."""

    def fit(self, tokens: Tensor) -> bool:
        """Return whether the grouped matrix multiplication can multiply `tokens` by these weights.

        The multiplication needs a single dtype. With autocast, tokens and weights may have different dtypes, because
        both are cast. This cast copies the weights. transformers' loop over the experts also copies them.
        """
        import torch

        if torch.is_autocast_enabled(tokens.device.type):
            return True
        return all(weight.dtype == tokens.dtype for part in (*self.up, self.down) for weight in part)


def has_operators(tokens: Tensor) -> bool:
    """Return whether `tokens` are on an NPU and this torch_npu has all operators that the computation needs."""
    # Look up all of them, so that the user reads about each missing one.
    return None not in [operator(name, tokens) for name in _OPERATORS]


def routed(tokens: Tensor, selected: Tensor, routing: Tensor, weights: Weights) -> Tensor:
    """Run each token through its chosen experts, and return the weighted sum of their outputs.

    tokens [tokens, width], selected and routing [tokens, chosen] -> [tokens, width] in the dtype of `tokens`.
    """
    import torch
    import torch_npu

    device = tokens.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tokens.dtype
    # We count with scatter_add_, because bincount and one_hot make the host wait until the device has computed the
    # largest index.
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
    return _unpermuted(out.to(tokens.dtype), places, routing)


def _permuted(tokens: Tensor, selected: Tensor) -> tuple[Tensor, Tensor]:
    """Copy each token once for each of its experts, sorted by expert.

    tokens [tokens, width] -> (copies [tokens * chosen, width], the row of each copy).
    """
    import torch
    import torch_npu

    # The operator has a gradient from torch_npu 2.7.1 on.
    if operator("npu_moe_token_permute", tokens, _FALLBACK) is not None:
        made: tuple[Tensor, Tensor] = torch_npu.npu_moe_token_permute(tokens, selected.to(torch.int32))
        return made
    # NPUs sort floats much faster than integers, and floats hold the expert indices exactly.
    order = torch.argsort(selected.reshape(-1).float(), stable=True)
    rows = torch.arange(order.numel(), device=order.device)
    return tokens.index_select(0, order // selected.shape[1]), torch.empty_like(order).scatter_(0, order, rows)


def _unpermuted(rows: Tensor, places: Tensor, routing: Tensor) -> Tensor:
    """Undo `_permuted`: return the rows to their tokens, and add up each token's rows, weighted with `routing`.

    rows [tokens * chosen, width], routing [tokens, chosen] -> [tokens, width].
    """
    import torch_npu

    if operator("npu_moe_token_unpermute", rows, _FALLBACK) is not None:
        made: Tensor = torch_npu.npu_moe_token_unpermute(rows, places, probs=routing)
        return made
    copies = rows.index_select(0, places.long()).unflatten(0, tuple(routing.shape))
    return (copies * routing.unsqueeze(-1)).sum(dim=1)


class Expert(Protocol):
    """One expert from a list, with the linear layers gate_proj, up_proj, and down_proj."""

    act_fn: Activation


class Experts(Protocol):
    """All experts of a block, with their weights stacked in two tensors."""

    gate_up_proj: Tensor
    down_proj: Tensor
    act_fn: Activation
    num_experts: int


GROUPED_MATMUL_TENSORS = 128
"""The maximum number of tensors in one list for `npu_grouped_matmul` (torch_npu-npu_grouped_matmul.md)."""


def weights_of_list(experts: Sequence[Expert]) -> Weights | None:
    """Return the weights of a list of experts, or None if the grouped matrix multiplication does not support these
    experts."""
    import torch

    projections = []
    for expert in experts:
        layers = [getattr(expert, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
        linears = [linear for linear in layers if type(linear) is torch.nn.Linear and linear.bias is None]
        if len(linears) < len(layers):
            return None
        if any(_must_be_called(module) for module in (expert, *linears)) or not is_silu(expert.act_fn):
            return None
        projections.append(tuple(linear.weight for linear in linears))
    if not projections or len(projections) > GROUPED_MATMUL_TENSORS:
        return None
    if not is_plain(*(weight for projection in projections for weight in projection)):
        return None
    gate, up, down = zip(*projections, strict=True)
    return Weights((gate, up), down, len(projections), transposed=True)


def weights_of_tensors(experts: Experts, *, transposed: bool) -> Weights | None:
    """Return the weights of experts that are stacked in two tensors, or None if the grouped matrix multiplication does
    not support these experts."""
    up, down = experts.gate_up_proj, experts.down_proj
    # With expert parallelism in transformers 5.18 and later, a token for an expert of another rank has an index that
    # no expert has here.
    if getattr(experts, "_is_expert_parallel", False):
        return None
    if not is_plain(up, down) or not is_silu(experts.act_fn):
        return None
    return Weights(((up,),), (down,), up.shape[0], transposed)


def _must_be_called(module: object) -> bool:
    # A module with hooks, or with its own forward, must be called.
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name) for name in hooks) or "forward" in vars(module)
