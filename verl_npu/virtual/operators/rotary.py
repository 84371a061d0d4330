"""Rotary position embeddings: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_rotary_mul.md and
torch_npu-npu_apply_rotary_pos_emb.md."""

from __future__ import annotations

import torch
from torch import Tensor

from .gradient import without_formula

WIDEST = 896


def npu_rotary_mul(
    input: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None
) -> Tensor:
    """`x * r1 + rotate(x) * r2`; differentiable.

    Shapes: x [B,N,S,D] or [B,S,N,D]; r1 (cosines) and r2 (sines) alike, of full width D, 1 where they broadcast.
    rotate: "half" is cat(-x2, x1) of the halves of D, "interleave" pairs (x[0::2], x[1::2]).

    Raises:
        RuntimeError: not 4 dimensions, D odd or not below 896, r1 and r2 of another width, an unknown mode.
        NotImplementedError: a matrix `rotate`.
    """
    if rotate is not None:
        raise NotImplementedError("npu_rotary_mul: rotate is not implemented by the virtual Ascend")
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
    return (input * r1 + _rotated("npu_rotary_mul", input, rotary_mode) * r2).to(input.dtype)


def npu_apply_rotary_pos_emb(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, layout: str = "BSND", rotary_mode: str = "half"
) -> tuple[Tensor, Tensor]:
    """`npu_rotary_mul` of query and key; no gradient.

    Shapes: query [B,S,N,D], key [B,S,Nkv,D], cos and sin [B,S,1,D] in the layout "BSND", or "BSH" as it was called
    first; "SBH", "BNSD" and "TND" ([T,N,D]) alike: cos and sin must broadcast.

    Raises:
        RuntimeError: an unknown layout or mode, widths that differ, and in backward.
    """
    layouts = ("BSH", "BSND", "SBH", "SBND", "BNSD", "TND")
    if layout not in layouts:
        raise RuntimeError(f"npu_apply_rotary_pos_emb: layout should be {'/'.join(layouts)}, but got {layout!r}")
    if not query.shape[-1] == key.shape[-1] == cos.shape[-1] == sin.shape[-1]:
        raise RuntimeError(
            "npu_apply_rotary_pos_emb: query, key, cos and sin must have one width, but have "
            f"{query.shape[-1]}, {key.shape[-1]}, {cos.shape[-1]}, {sin.shape[-1]}"
        )

    def compute() -> tuple[Tensor, ...]:
        name = "npu_apply_rotary_pos_emb"
        return tuple((x * cos + _rotated(name, x, rotary_mode) * sin).to(x.dtype) for x in (query, key))

    turned, turned_key = without_formula("npu_apply_rotary_pos_emb", (query, key, cos, sin), compute)
    return turned, turned_key


def _rotated(operator: str, x: Tensor, mode: str) -> Tensor:
    if mode == "half":
        first, second = x.chunk(2, dim=-1)
        return torch.cat((-second, first), dim=-1)
    if mode == "interleave":
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    raise RuntimeError(f"{operator}: rotary_mode should be half or interleave, but got {mode!r}")
