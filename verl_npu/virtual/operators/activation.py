"""Activations: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_swiglu.md and torch_npu-npu_gelu.md."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def npu_swiglu(input: Tensor, dim: int = -1) -> Tensor:
    """`silu(first half) * second half` along `dim`, formed in float32; differentiable.

    Shapes: x [.., 2*H, ..] -> [.., H, ..].

    Raises:
        RuntimeError: the dimension's size is odd.
    """
    if input.shape[dim] % 2:
        raise RuntimeError(f"npu_swiglu: the size of dimension {dim} must be even, but is {input.shape[dim]}")
    gate, up = input.float().chunk(2, dim=dim)
    return (functional.silu(gate) * up).to(input.dtype)


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
