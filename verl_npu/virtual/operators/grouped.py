"""Matrix products of groups: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_grouped_matmul.md and
torch_npu-npu_grouped_matmul_add_.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from .gradient import without_formula
from .layout import dtype_of


def npu_grouped_matmul(
    x: Sequence[Tensor],
    weight: Sequence[Tensor],
    *,
    bias: Sequence[Tensor] | None = None,
    scale: Sequence[Tensor] | None = None,
    offset: Sequence[Tensor] | None = None,
    antiquant_scale: Sequence[Tensor] | None = None,
    antiquant_offset: Sequence[Tensor] | None = None,
    per_token_scale: Sequence[Tensor] | None = None,
    group_list: Tensor | Sequence[int] | None = None,
    activation_input: Sequence[Tensor] | None = None,
    activation_quant_scale: Sequence[Tensor] | None = None,
    activation_quant_offset: Sequence[Tensor] | None = None,
    split_item: int = 0,
    group_type: int | None = None,
    group_list_type: int = 0,
    act_type: int = 0,
    tuning_config: Sequence[int] | None = None,
    output_dtype: int | torch.dtype | None = None,
    x_dtype: int | None = None,
    weight_dtype: int | None = None,
    scale_dtype: int | None = None,
    per_token_scale_dtype: int | None = None,
) -> list[Tensor]:
    """Matrix products of groups; no gradient (callers wrap it in an autograd.Function).

    group_type -1: x[i] [M_i,K_i] @ weight[i] [K_i,N_i]. 0: rows of x [M,K] in E groups, weight [E,K,N] -> [M,N]. 2:
    columns of x [M,K] and rows of weight [K,N] in E groups -> [E,M,N]. `group_list`: ends (group_list_type 0) or
    counts (1) of the groups. split_item 0 and 1: a tensor per group; 2 and 3: one tensor.

    Raises:
        RuntimeError: groups that do not cover x, unknown types; and in backward.
        NotImplementedError: quantisation, activations, (index, count) pairs.
    """
    _refuse_unwritten(locals())
    if split_item not in (0, 1, 2, 3):
        raise RuntimeError(f"npu_grouped_matmul: split_item must be 0, 1, 2 or 3, but got {split_item}")
    kind = -1 if group_type is None else group_type
    if kind not in (-1, 0, 2):
        raise RuntimeError(f"npu_grouped_matmul: group_type must be -1, 0 or 2, but got {kind}")

    def compute() -> tuple[Tensor, ...]:
        if kind == -1:
            results = _each(x, weight, bias)
        else:
            extent = x[0].shape[0] if kind == 0 else x[0].shape[1]
            bounds = list(pairwise([0, *_ends(group_list, group_list_type, extent)]))
            results = _rows(x[0], weight, bias, bounds) if kind == 0 else _columns(x[0], weight[0], bounds)
        if kind != 2 and split_item in (2, 3):
            results = [torch.cat(results)]
        if output_dtype is None:
            return tuple(results)
        return tuple(result.to(dtype_of("npu_grouped_matmul", output_dtype)) for result in results)

    return list(without_formula("npu_grouped_matmul", (*x, *weight, *(bias or ())), compute))


def npu_grouped_matmul_add_(
    input: Tensor,
    x: Tensor,
    weight: Tensor,
    group_list: Tensor,
    *,
    transpose_x: bool = True,
    transpose_weight: bool = False,
    group_type: int = 2,
    group_list_type: int = 0,
) -> Tensor:
    """`input[e] += x[rows of e]^T @ weight[rows of e]` in place: how gradients of experts add up; no gradient.

    Shapes: input float32 [E,K,N] or [E*K,N], x [M,K], weight [M,N], group_list int64 [E] (ends or, with
    group_list_type 1, counts).

    Raises:
        RuntimeError: groups that do not cover x.
        NotImplementedError: another transposition or group_type.
    """
    if not transpose_x or transpose_weight or group_type != 2:
        raise NotImplementedError(
            "npu_grouped_matmul_add_: only transpose_x=True, transpose_weight=False, group_type=2 are implemented by "
            "the virtual Ascend"
        )
    ends = _ends(group_list, group_list_type, x.shape[0])
    with torch.no_grad():
        sums = input.view(len(ends), x.shape[1], weight.shape[1])
        for total, (start, end) in zip(sums, pairwise([0, *ends]), strict=True):
            total.add_((x[start:end].float().t() @ weight[start:end].float()).to(total.dtype))
    return input


_UNWRITTEN = (
    "scale",
    "offset",
    "antiquant_scale",
    "antiquant_offset",
    "per_token_scale",
    "activation_input",
    "activation_quant_scale",
    "activation_quant_offset",
    "tuning_config",
    "x_dtype",
    "weight_dtype",
    "scale_dtype",
    "per_token_scale_dtype",
)


def _refuse_unwritten(given: Mapping[str, object]) -> None:
    used = {name: given[name] is not None for name in _UNWRITTEN}
    used |= {"act_type": bool(given["act_type"]), "group_list_type": given["group_list_type"] == 2}
    for name, refused in used.items():
        if refused:
            raise NotImplementedError(
                f"npu_grouped_matmul: {name}={given[name]!r} is not implemented by the virtual Ascend"
            )


def _ends(group_list: Tensor | Sequence[int] | None, kind: int, extent: int) -> list[int]:
    if group_list is None:
        raise RuntimeError("npu_grouped_matmul: group_type 0 and 2 need a group_list")
    if isinstance(group_list, Tensor) and group_list.dim() != 1:
        raise RuntimeError(
            f"npu_grouped_matmul: group_list must have one dimension with group_list_type {kind}, but its shape is "
            f"{tuple(group_list.shape)}"
        )
    numbers = [int(n) for n in (group_list.tolist() if isinstance(group_list, Tensor) else group_list)]
    if kind not in (0, 1):
        raise RuntimeError(f"npu_grouped_matmul: group_list_type must be 0, 1 or 2, but got {kind}")
    ends = numbers if kind == 0 else [sum(numbers[: i + 1]) for i in range(len(numbers))]
    if not ends or ends[-1] != extent or any(b < a for a, b in pairwise([0, *ends])):
        raise RuntimeError(f"npu_grouped_matmul: group_list must grow up to {extent}, but ends are {ends}")
    return ends


def _each(x: Sequence[Tensor], weight: Sequence[Tensor], bias: Sequence[Tensor] | None) -> list[Tensor]:
    if len(x) != len(weight):
        raise RuntimeError(f"npu_grouped_matmul: {len(x)} tensors in x, but {len(weight)} in weight")
    return [_product(a, w, None if bias is None else bias[i]) for i, (a, w) in enumerate(zip(x, weight, strict=True))]


def _rows(
    x: Tensor, weight: Sequence[Tensor], bias: Sequence[Tensor] | None, bounds: list[tuple[int, int]]
) -> list[Tensor]:
    weights = list(weight[0]) if len(weight) == 1 and weight[0].dim() == 3 else list(weight)
    if len(weights) != len(bounds):
        raise RuntimeError(f"npu_grouped_matmul: {len(bounds)} groups, but {len(weights)} weights")
    biases = None if bias is None else (list(bias[0]) if len(bias) == 1 and bias[0].dim() == 2 else list(bias))
    return [
        _product(x[start:end], w, None if biases is None else biases[i])
        for i, ((start, end), w) in enumerate(zip(bounds, weights, strict=True))
    ]


def _columns(x: Tensor, weight: Tensor, bounds: list[tuple[int, int]]) -> list[Tensor]:
    return [torch.stack([x[:, start:end] @ weight[start:end] for start, end in bounds])]


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x @ weight if bias is None else (x @ weight + bias).to(x.dtype)
