"""Implementations, for virtual NPUs, of the operators that MindSpeed compiles against CANN or ATB.

The operators are the grouped products of experts (ops/csrc/cann/gmm.cpp and ops/csrc/atb/groupmatmul_add.cpp), the
product that is added to a weight's gradient (ops/csrc/atb/matmul_add.cpp), the step of the swapped optimizer
(ops/csrc/cann/npu_apply_fused_adamw_v2.cpp), and, until MindSpeed 2.2.0, the fused rotary embedding
(ops/csrc/cann/npu_rotary_position_embedding.cpp). Later releases call torch_npu instead. From core_r0.16.0 on, Triton
kernels for NPUs sort tokens by expert (ops/triton/sort_chunks_by_idx.py) and compute the recurrence of linear
attention and its norm (core/ssm/chunk_gated_delta_rule.py, ops/triton/l2norm.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import TypeAlias

import torch
from virtual_ascend.operators.experts import npu_grouped_matmul, npu_grouped_matmul_add_
from virtual_ascend.operators.fused import Result, fused, is_fusible

Groups: TypeAlias = "torch.Tensor | Sequence[int] | None"
Tensors: TypeAlias = Sequence[torch.Tensor]

_DIMENSIONS = 4
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class _Rotation(IntEnum):
    HALF = 0
    INTERLEAVED = 1


def offer_operators(builder: ModuleType) -> None:
    """Register the operators in `mindspeed.op_builder.builder` as if they had been compiled."""
    grouped: dict[str, Callable[..., object]] = {
        "npu_gmm": grouped_product,
        "npu_gmm_backward": grouped_product_backward,
        "npu_gmm_backward_fusion": _grouped_product_input_gradient,
    }
    libraries: dict[str, dict[str, Callable[..., object]]] = {
        "grouped_matmul": grouped,
        "grouped_matmul_v2": grouped,
        "npu_groupmatmul_add_fp32": {"npu_groupmatmul_add_fp32": add_grouped_product},
        "npu_matmul_add_fp32": {"npu_matmul_add_fp32": add_product},
        "npu_apply_fused_adamw_v2": {"npu_apply_fused_adamw_v2": adamw_step},
        "npu_rotary_position_embedding": {"npu_rotary_position_embedding": rotary_position_embedding},
    }
    for name, functions in libraries.items():
        builder.MindSpeedOpBuilder._loaded_ops.setdefault(name, SimpleNamespace(**functions))


def load_without_atb(builder: ModuleType) -> None:
    """Let the builders in `mindspeed.op_builder.atb_builder` load registered operators without the CANN package
    nnal."""
    del builder.AtbOpBuilder.load


def offer_sorting(kernels: ModuleType) -> None:
    """Replace each function in `mindspeed.ops.triton.sort_chunks_by_idx` that launches a kernel. The replacements are
    implemented in plain torch."""
    kernels.make_chunk_sort_map = chunk_sort_map  # type: ignore[attr-defined]
    kernels.sort_chunks_by_map = sorted_rows  # type: ignore[attr-defined]


def offer_norm(kernels: ModuleType) -> None:
    """Replace the norm in `mindspeed.ops.triton.l2norm` with an implementation in plain torch."""
    kernels.l2norm = kernels.l2_norm = l2norm  # type: ignore[attr-defined]


def offer_recurrence(rule: ModuleType) -> None:
    """Make `mindspeed.core.ssm.chunk_gated_delta_rule` use its own implementation in plain torch."""

    def chunk_gated_delta_rule(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        scale: float | None = None,
        initial_state: torch.Tensor | None = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        cu_seqlens: torch.Tensor | None = None,
        chunk_size: int = 64,
        head_first: bool = False,
    ) -> object:
        if (scale is not None and scale != k.shape[-1] ** -0.5) or head_first:
            raise NotImplementedError(
                "on virtual NPUs, chunk_gated_delta_rule supports only the default scale, and does not support "
                "head_first"
            )
        if q.dtype == torch.float32:
            raise ValueError("ChunkGatedDeltaRuleFunction does not support float32. Please use bfloat16.")
        if use_qk_l2norm_in_kernel:
            q, k = l2norm(q), l2norm(k)
        return rule.torch_chunk_gated_delta_rule(
            q,
            k,
            v,
            g=g,
            beta=beta,
            chunk_size=chunk_size,
            initial_state=initial_state,
            output_final_state=output_final_state,
            cu_seqlens=cu_seqlens,
        )

    # verl-npu reports the function's module.
    chunk_gated_delta_rule.__module__ = rule.__name__
    rule.chunk_gated_delta_rule = chunk_gated_delta_rule  # type: ignore[attr-defined]


def l2norm(x: torch.Tensor, eps: float = 1e-6, output_dtype: torch.dtype | None = None) -> torch.Tensor:
    """Divide x [.., K] by sqrt(sum(x**2) + eps), with the sum along K. Source: ops/triton/l2norm.py."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)).to(output_dtype or x.dtype)


def chunk_sort_map(sizes: torch.Tensor, order: torch.Tensor, tokens: int, chunks: int) -> torch.Tensor:
    """Return the new position of each row, int32 [tokens], given the chunk sizes [chunks] and the new order of the
    chunks [chunks]."""
    starts = sizes.cumsum(0) - sizes
    moved = sizes[order]
    places = torch.empty_like(starts).scatter_(0, order, moved.cumsum(0) - moved)
    rows = torch.arange(tokens, device=sizes.device)
    return (rows + (places - starts).repeat_interleave(sizes, output_size=tokens)).int()


def sorted_rows(
    x: torch.Tensor, row_map: torch.Tensor, probs: torch.Tensor | None, tokens: int, width: int, is_forward: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return x [tokens, width] and probs [tokens] with their rows moved to the positions in the map. If `is_forward`
    is false, the rows are moved back."""
    rows = row_map.long()

    def move(given: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(given).index_copy_(0, rows, given) if is_forward else given[rows]

    return move(x), None if probs is None else move(probs)


def grouped_product(
    x: Tensors, weight: Tensors, bias: Tensors, group_list: Groups, group_type: int | None, group_list_type: int | None
) -> list[torch.Tensor]:
    """Multiply each group of rows of x[0] [M,K] with one matrix of weight[0] [E,K,N] -> [[M,N]]. With group_type 2,
    multiply groups of columns -> [[E,M,N]].

    `group_list` has the ends of the groups (group_list_type 0) or their sizes (1). Source: npu_gmm in MindSpeed's
    gmm.cpp, which calls the same operator as torch_npu's npu_grouped_matmul. Raises the same RuntimeErrors as that
    operator.
    """
    return npu_grouped_matmul(
        x,
        weight,
        bias=list(bias) or None,
        group_list=group_list,
        split_item=3,
        group_type=group_type,
        group_list_type=group_list_type or 0,
    )


def grouped_product_backward(
    grad: Tensors, x: Tensors, weight: Tensors, group_list: Groups, group_list_type: int | None
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Return the gradients of x and weight, and an empty list for the bias. Source: npu_gmm_backward of gmm.cpp."""
    to_x, _, none = _grouped_product_input_gradient(grad, weight, group_list, group_list_type)
    turned = [each.transpose(-1, -2) for each in x]
    to_weight = grouped_product(turned, grad, [], group_list, 2, group_list_type)
    return to_x, [made.reshape(like.shape) for made, like in zip(to_weight, weight, strict=True)], none


def _grouped_product_input_gradient(
    grad: Tensors, weight: Tensors, group_list: Groups, group_list_type: int | None
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    turned = [each.transpose(-1, -2) for each in weight]
    return grouped_product(grad, turned, [], group_list, 0, group_list_type), [], []


def add_grouped_product(x: torch.Tensor, grad: torch.Tensor, ends: torch.Tensor, total: torch.Tensor) -> None:
    """Add x^T [K,M] @ grad [M,N] of each group of rows to float32 `total` [E,K,N]. Source: groupmatmul_add.cpp."""
    npu_grouped_matmul_add_(total, x, grad, ends)


def add_product(grad: torch.Tensor, x: torch.Tensor, total: torch.Tensor) -> None:
    """Add grad^T [N,M] @ x [M,K] to float32 `total` [N,K]. Source: matmul_add.cpp.

    The product is rounded to the dtype of `x` before it is added, as in Megatron without the fusion; the real kernel
    does not round it.
    """
    total.add_(grad.t() @ x)


def adamw_step(
    param: torch.Tensor,
    grad: torch.Tensor,
    average: torch.Tensor,
    squares: torch.Tensor,
    largest: torch.Tensor,
    step: torch.Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
) -> None:
    """Take one step of AdamW in place; `step` counts from 1. Source: npu_apply_fused_adamw_v2.cpp, PyTorch's AdamW."""
    with torch.no_grad():
        grad = (-grad if maximize else grad).to(average.dtype)
        count = float(step)
        param.mul_(1 - lr * weight_decay)
        average.lerp_(grad, 1 - beta1)
        squares.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        if amsgrad:
            torch.maximum(largest, squares, out=largest)
        root = (largest if amsgrad else squares).sqrt() / (1 - beta2**count) ** 0.5
        param.addcdiv_(average, root.add_(eps), value=-lr / (1 - beta1**count))


def rotary_position_embedding(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mode: int = 0) -> torch.Tensor:
    """Rotate x [seqlen, batch, heads, width] by cos and sin, whose four dimensions broadcast to the dimensions of x.

    The checks and their RuntimeErrors follow MindSpeed's npu_rotary_position_embedding.cpp.
    """
    for name, tensor in (("x", x), ("cos", cos), ("sin", sin)):
        if tensor.dtype not in _DTYPES:
            raise RuntimeError(f"{name} should be float32, float16 or bfloat16, but is {tensor.dtype}")
        if tensor.dim() != _DIMENSIONS:
            raise RuntimeError(f"{name} should have {_DIMENSIONS} dimensions, but has {tensor.dim()}")
    if x.shape[-1] % 2:
        raise RuntimeError(f"the head dimension of x must be even, but is {x.shape[-1]}")
    if cos.shape != sin.shape:
        raise RuntimeError(
            f"cos and sin must have the same shape, but their shapes are {tuple(cos.shape)} and {tuple(sin.shape)}"
        )
    if mode not in tuple(_Rotation):
        raise RuntimeError(f"the rotary mode must be 0 (halves) or 1 (interleaved), but is {mode}")

    def compute(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor]:
        if mode == _Rotation.HALF:
            first, second = x.chunk(2, dim=-1)
            turned = torch.cat((-second, first), dim=-1)
        else:
            turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
        return (x * cos + turned * sin,)

    given = (x, cos, sin)
    whole = torch.broadcast_shapes(x.shape, cos.shape) == x.shape and x.dtype == cos.dtype == sin.dtype
    if not whole or not is_fusible(given):
        return compute(*given)[0]
    return fused("npu_rotary_mul", compute, (Result(x.shape, x.dtype),), given, keep=slice(0))[0]
