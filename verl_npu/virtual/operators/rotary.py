"""Rotary position embeddings: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_rotary_mul.md,
torch_npu-npu_apply_rotary_pos_emb.md and torch_npu-npu_mrope.md."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .fused import Result, fused, is_fusible
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

    def compute(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor]:
        return ((x * cos + _rotated("npu_rotary_mul", x, rotary_mode) * sin).to(x.dtype),)

    given = (input, r1, r2)
    shape = torch.broadcast_shapes(input.shape, r1.shape)
    if shape != input.shape or not is_fusible(given):
        return compute(*given)[0]
    return fused("npu_rotary_mul", compute, (Result(shape, input.dtype),), given, keep=slice(0))[0]


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


def npu_mrope(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    *,
    mrope_section: Sequence[int] | None = None,
    rotary_mode: str | None = "half",
    cache_mode: str | None = "default",
) -> tuple[Tensor, Tensor]:
    """Rotate the first R of each head of query and key by their positions, of which images have three each; no
    gradient.

    Shapes: positions int32 or int64 [T] or [3,T], query [T,N*head_size], key [T,Nkv*head_size], cos_sin_cache
    [positions,R]: cosines, then sines. mrope_section: how many of the R/2 angles follow each row of positions [3,T],
    [0,0,0] for positions [T].

    Raises:
        RuntimeError: shapes, dtypes or sections that do not go together, and in backward.
        NotImplementedError: a cache_mode other than "default".
    """
    name = "npu_mrope"
    if cache_mode not in (None, "default"):
        raise NotImplementedError(f"{name}: cache_mode {cache_mode} is not implemented by the virtual Ascend")
    sections = list(mrope_section or (0, 0, 0))
    half = cos_sin_cache.shape[-1] // 2
    if positions.dim() == 1:
        fit = sections == [0, 0, 0]
    else:
        fit = positions.dim() == 2 and len(positions) == len(sections) == 3 and sum(sections) == half
    if not fit or positions.dtype not in (torch.int32, torch.int64):
        raise RuntimeError(
            f"{name}: expected whole positions [T] and mrope_section [0,0,0], or [3,T] and one that adds up to "
            f"{half}, but got {positions.dtype} {tuple(positions.shape)} and {sections}"
        )
    for what, tensor in (("query", query), ("key", key)):
        if tensor.dim() != 2 or tensor.shape[1] % head_size or tensor.dtype != cos_sin_cache.dtype:
            raise RuntimeError(
                f"{name}: {what} must be [tokens, heads * {head_size}] in {cos_sin_cache.dtype}, but is "
                f"{tuple(tensor.shape)} in {tensor.dtype}"
            )

    def compute() -> tuple[Tensor, ...]:
        cos, sin = cos_sin_cache[positions.long()].chunk(2, dim=-1)
        if positions.dim() == 2:
            cos, sin = (
                torch.cat([part[row] for row, part in enumerate(table.split(sections, dim=-1))], dim=-1)
                for table in (cos, sin)
            )
        mode = rotary_mode or "half"
        full = [
            torch.cat((table, table), dim=-1) if mode == "half" else table.repeat_interleave(2, dim=-1)
            for table in (cos, sin)
        ]

        def turned(x: Tensor) -> Tensor:
            heads = x.unflatten(1, (-1, head_size))
            first, rest = heads.split([2 * half, head_size - 2 * half], dim=-1)
            of_cos, of_sin = (table.unsqueeze(1) for table in full)
            first = (first * of_cos + _rotated(name, first, mode) * of_sin).to(x.dtype)
            return torch.cat((first, rest), dim=-1).flatten(1)

        return turned(query), turned(key)

    turned_query, turned_key = without_formula(name, (query, key, cos_sin_cache), compute)
    return turned_query, turned_key


def _rotated(operator: str, x: Tensor, mode: str) -> Tensor:
    if mode == "half":
        first, second = x.chunk(2, dim=-1)
        return torch.cat((-second, first), dim=-1)
    if mode == "interleave":
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    raise RuntimeError(f"{operator}: rotary_mode should be half or interleave, but got {mode!r}")
