"""RMS norms: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_rms_norm.md and torch_npu-npu_add_rms_norm.md."""

from __future__ import annotations

import torch
from torch import Tensor

from .fused import Result, fused, is_fusible
from .gradient import without_formula


def npu_rms_norm(input: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """`x * rsqrt(mean(x^2) + epsilon) * gamma`, formed in float32 and rounded once; differentiable.

    Shapes: x [*, D...], gamma [D...] (the last dimensions of x).

    Returns:
        (y [*, D...] of x's dtype, rstd float32 [*, 1...]).

    Raises:
        RuntimeError: gamma is not of the shape of x's last dimensions, or the dtypes do not go together.
    """
    _check("npu_rms_norm", input, gamma)

    def compute(input: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
        dims = tuple(range(input.dim() - gamma.dim(), input.dim()))
        x = input.float()
        rstd = torch.rsqrt(x.pow(2).mean(dim=dims, keepdim=True) + epsilon)
        return (x * rstd * gamma.float()).to(input.dtype), rstd.detach()

    if not is_fusible((input, gamma)):
        return compute(input, gamma)
    rows = Result((*input.shape[: input.dim() - gamma.dim()], *[1] * gamma.dim()), torch.float32)
    y, rstd = fused(
        "npu_rms_norm", compute, (Result(input.shape, input.dtype), rows), (input, gamma), keep=slice(1, None)
    )
    return y, rstd


def npu_add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    """`npu_rms_norm(x1 + x2, gamma)`; no gradient.

    Shapes: x1 and x2 [*, D...], gamma [D...].

    Returns:
        (y, rstd, x1 + x2).

    Raises:
        RuntimeError: as npu_rms_norm; and in backward.
    """
    if x1.shape != x2.shape or x1.dtype != x2.dtype:
        raise RuntimeError(
            f"npu_add_rms_norm: x1 and x2 must be alike, but are {tuple(x1.shape)} {x1.dtype} and "
            f"{tuple(x2.shape)} {x2.dtype}"
        )

    def compute() -> tuple[Tensor, ...]:
        x = x1 + x2
        return (*npu_rms_norm(x, gamma, epsilon), x)

    y, rstd, x = without_formula("npu_add_rms_norm", (x1, x2, gamma), compute)
    return y, rstd, x


def _check(name: str, x: Tensor, gamma: Tensor) -> None:
    if gamma.dim() == 0 or x.shape[-gamma.dim() :] != gamma.shape:
        raise RuntimeError(
            f"{name}: gamma must have the shape of the last dimensions of x, but is {tuple(gamma.shape)} for "
            f"{tuple(x.shape)}"
        )
    half = (torch.float16, torch.bfloat16)
    if x.dtype not in (*half, torch.float32) or not (
        x.dtype == gamma.dtype or (x.dtype in half and gamma.dtype is torch.float32)
    ):
        raise RuntimeError(
            f"{name}: x and gamma must have one dtype of fp16, bf16, fp32, or x fp16/bf16 and gamma fp32, but "
            f"are {x.dtype} and {gamma.dtype}"
        )
