"""Matrix products of groups: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_grouped_matmul.md and
torch_npu-npu_grouped_matmul_add_.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from .fused import Result, computed, is_fusible
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
    _check_form(x, weight, group_list, split_item, group_type)
    if kind not in (-1, 0, 2):
        raise RuntimeError(f"npu_grouped_matmul: group_type must be -1, 0 or 2, but got {kind}")

    bounds: list[tuple[int, int]] = []
    if kind != -1:
        extent = x[0].shape[0] if kind == 0 else x[0].shape[1]
        bounds = list(pairwise([0, *_ends(group_list, group_list_type, extent)]))
    given = (*x, *weight, *(bias or ()))

    def compute(*tensors: Tensor) -> tuple[Tensor, ...]:
        x_, weight_ = tensors[: len(x)], tensors[len(x) : len(x) + len(weight)]
        bias_ = tensors[len(x) + len(weight) :] or None
        if kind == -1:
            results = _each(x_, weight_, bias_)
        else:
            results = _rows(x_[0], weight_, bias_, bounds) if kind == 0 else _columns(x_[0], weight_[0], bounds)
        if kind != 2 and split_item in (2, 3):
            results = [torch.cat(results)]
        if output_dtype is None:
            return tuple(results)
        return tuple(result.to(dtype_of("npu_grouped_matmul", output_dtype)) for result in results)

    def by_one_kernel() -> tuple[Tensor, ...]:
        if not is_fusible(given):
            return compute(*given)
        looks = compute(*(torch.empty_like(tensor, device="meta") for tensor in given))
        # Each row is multiplied by the weight of one group, and all groups have weights of one width.
        flops = sum(2.0 * each.numel() * weight[0].shape[-1] for each in x)
        shapes = [Result(look.shape, look.dtype) for look in looks]
        return computed("npu_grouped_matmul", compute, shapes, given, flops=flops)

    return list(without_formula("npu_grouped_matmul", given, by_one_kernel))


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


def _check_form(
    x: Sequence[Tensor],
    weight: Sequence[Tensor],
    group_list: Tensor | Sequence[int] | None,
    split_item: int,
    group_type: int | None,
) -> None:
    """What the wheel refuses before it asks CANN."""
    name = "npu_grouped_matmul"
    if group_type is None and not isinstance(group_list, list | tuple):
        raise RuntimeError(f"{name}: Requires manual passing group_type, current is None.")
    if split_item in (0, 1) and group_type in (0, 2) and isinstance(group_list, Tensor) and len(x) > 1:
        raise RuntimeError(f"{name}: with split_item {split_item} and a group_list, x must hold one tensor")
    if split_item in (0, 1) and group_type == 0 and isinstance(group_list, list | tuple):
        raise RuntimeError(f"{name}: numbers as group_list need split_item 2 or 3, but got {split_item}")
    if split_item in (0, 1) and group_type == 2:
        raise RuntimeError(f"{name}: group_type 2 needs split_item 2 or 3, but got {split_item}")
    if split_item in (2, 3) and group_type == 2 and len(weight) != len(x):
        raise RuntimeError(f"{name}: with group_type 2 there must be as many tensors in weight as in x")
    if len({tensor.dtype for tensor in (*x, *weight)}) > 1:
        raise RuntimeError(f"{name}: x and weight must have one dtype, but have {x[0].dtype} and {weight[0].dtype}")
    if group_type == -1 and any(matrix.dim() != 2 for matrix in weight):
        raise RuntimeError(f"{name}: with group_type -1 each weight must have 2 dimensions")


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
