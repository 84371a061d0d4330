"""Activations: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_swiglu.md, torch_npu-npu_gelu.md,
torch_npu-npu_scaled_masked_softmax.md and torch_npu-npu_fast_gelu.md."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .fused import Result, fused, is_fusible

_NONE = slice(0)
"""Of their results these operators' gradients need none."""


def npu_swiglu(input: Tensor, dim: int = -1) -> Tensor:
    """`silu(first half) * second half` along `dim`, formed in float32; differentiable.

    Shapes: x [.., 2*H, ..] -> [.., H, ..].

    Raises:
        RuntimeError: the dimension's size is odd.
    """
    if input.shape[dim] % 2:
        raise RuntimeError(f"npu_swiglu: the size of dimension {dim} must be even, but is {input.shape[dim]}")

    def compute(x: Tensor) -> tuple[Tensor]:
        gate, up = x.float().chunk(2, dim=dim)
        return ((functional.silu(gate) * up).to(x.dtype),)

    if not is_fusible((input,)):
        return compute(input)[0]
    shape = list(input.shape)
    shape[dim] //= 2
    return fused("npu_swiglu", compute, (Result(shape, input.dtype),), (input,), keep=_NONE)[0]


def npu_silu(input: Tensor) -> Tensor:
    """`x * sigmoid(x)` of any shape; differentiable."""
    return functional.silu(input)


def npu_gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    """GELU of any shape, "none" (erf) or "tanh"; differentiable.

    Raises:
        RuntimeError: another approximation.
    """
    if approximate not in ("none", "tanh"):
        raise RuntimeError(f"npu_gelu: approximate should be none or tanh, but got {approximate!r}")
    return functional.gelu(input, approximate=approximate)


def npu_fast_gelu(input: Tensor) -> Tensor:
    """`x * sigmoid(1.702 x)` of any shape, formed in float32; differentiable."""

    def compute(given: Tensor) -> tuple[Tensor]:
        x = given.float()
        return ((x * (1.702 * x).sigmoid()).to(given.dtype),)

    if not is_fusible((input,)):
        return compute(input)[0]
    return fused("npu_fast_gelu", compute, (Result(input.shape, input.dtype),), (input,), keep=_NONE)[0]


def fast_gelu(input: Tensor) -> Tensor:
    """`npu_fast_gelu` under its older name."""
    return npu_fast_gelu(input)


def npu_scaled_masked_softmax(x: Tensor, mask: Tensor, scale: float = 1, fixed_triu_mask: bool = False) -> Tensor:
    """Softmax over the last dimension of `scale * x`, formed in float32, where the mask's true places count as -10000;
    differentiable in x.

    Shapes: x [.., H, W], mask broadcast to it.

    Raises:
        RuntimeError: the mask is not bool, H or W is not a multiple of 32 from 32 to 4096.
        NotImplementedError: fixed_triu_mask, which the documentation says is not finished.
    """
    if fixed_triu_mask:
        raise NotImplementedError(
            "npu_scaled_masked_softmax: fixed_triu_mask is not implemented by the virtual Ascend"
        )
    if mask.dtype != torch.bool:
        raise RuntimeError(f"npu_scaled_masked_softmax: expected a mask of bool, but got {mask.dtype}")
    if x.dim() < 2 or any(size % 32 or not 32 <= size <= 4096 for size in x.shape[-2:]):
        raise RuntimeError(
            "npu_scaled_masked_softmax: the last two dimensions must be multiples of 32 from 32 to 4096, but x is "
            f"{list(x.shape)}"
        )
    return (x.float() * scale).masked_fill(mask, -10000.0).softmax(-1).to(x.dtype)
