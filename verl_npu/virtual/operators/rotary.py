"""npu_rotary_mul: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_rotary_mul.md."""

from __future__ import annotations

import torch
from torch import Tensor

WIDEST = 896


def npu_rotary_mul(input: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half") -> Tensor:
    """`x * r1 + rotate(x) * r2`; differentiable.

    Shapes: x [B,N,S,D] or [B,S,N,D]; r1 (cosines) and r2 (sines) alike, of full width D, 1 where they broadcast.
    rotate: "half" is cat(-x2, x1) of the halves of D, "interleave" pairs (x[0::2], x[1::2]).

    Raises:
        RuntimeError: not 4 dimensions, D odd or not below 896, r1 and r2 of another width, an unknown mode.
    """
    width = input.shape[-1]
    if input.dim() != 4 or r1.dim() != 4 or r2.dim() != 4:
        raise RuntimeError(
            f"npu_rotary_mul: x, r1 and r2 must have 4 dimensions, but have {input.dim()}, {r1.dim()}, {r2.dim()}"
        )
    if width % 2 or width >= WIDEST:
        raise RuntimeError(f"npu_rotary_mul: the last dimension must be even and below {WIDEST}, but is {width}")
    if r1.shape != r2.shape or r1.shape[-1] != width:
        raise RuntimeError(
            f"npu_rotary_mul: r1 and r2 must have the full width {width}, but are {tuple(r1.shape)} and "
            f"{tuple(r2.shape)}"
        )
    if rotary_mode == "half":
        first, second = input.chunk(2, dim=-1)
        rotated = torch.cat((-second, first), dim=-1)
    elif rotary_mode == "interleave":
        rotated = torch.stack((-input[..., 1::2], input[..., ::2]), dim=-1).flatten(-2)
    else:
        raise RuntimeError(f"npu_rotary_mul: rotary_mode should be half or interleave, but got {rotary_mode!r}")
    return (input * r1 + rotated * r2).to(input.dtype)
