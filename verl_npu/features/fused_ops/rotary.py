"""Rotary position embeddings through `npu_rotary_mul`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ...ascend.operators import ROTARY_MUL_WIDTH
from ...registry.source.probe import AllOf, Defines, Mentions
from .feature import declare, modeling
from .operator import Operator, operator

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["multimodal", "text", "vision"]

Pair: TypeAlias = "tuple[Tensor, Tensor]"


def text(
    original: Callable[..., Pair], q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: object, **kwargs: object
) -> Pair:
    """q [batch, heads, seqlen, width], k alike, cos and sin [batch, seqlen, width] -> q and k, rotated."""
    axis = kwargs.get("unsqueeze_dim", 1)
    fused = None if args else _fused(q, k, cos, sin)
    if fused is None:
        return original(q, k, cos, sin, *args, **kwargs)
    return _rotated(fused, q, k, cos.unsqueeze(axis), sin.unsqueeze(axis))


def multimodal(
    original: Callable[..., Pair],
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    mrope_section: Sequence[int],
    unsqueeze_dim: int = 1,
) -> Pair:
    """As `text`, with cos and sin [3, batch, seqlen, width]: each section of the width uses time, height or width."""
    import torch

    fused = _fused(q, k, cos, sin)
    if fused is None:
        return original(q, k, cos, sin, mrope_section, unsqueeze_dim)

    def chosen(angles: Tensor) -> Tensor:
        parts = angles.split(list(mrope_section) * 2, dim=-1)
        return torch.cat([part[n % 3] for n, part in enumerate(parts)], dim=-1).unsqueeze(unsqueeze_dim)

    return _rotated(fused, q, k, chosen(cos), chosen(sin))


def vision(original: Callable[..., Pair], q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """q [patches, heads, width], k alike, cos and sin [patches, width] -> q and k, rotated in float32."""
    fused = _fused(q, k, cos, sin) if q.dim() == 3 and cos.dim() == 2 else None
    if fused is None:
        return original(q, k, cos, sin)
    cos, sin = (angles.float()[None, :, None] for angles in (cos, sin))
    first, second = (fused(x.float().unsqueeze(0), cos, sin).squeeze(0).to(x.dtype) for x in (q, k))
    return first, second


def _fused(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Operator | None:
    width = q.shape[-1]
    fits = width == k.shape[-1] == cos.shape[-1] == sin.shape[-1] and width % 2 == 0 and width < ROTARY_MUL_WIDTH
    one_dtype = q.dtype == k.dtype and cos.dtype == sin.dtype
    return operator("npu_rotary_mul", q) if fits and one_dtype and k.numel() else None


def _rotated(fused: Operator, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    import torch

    # If the angles are float32, so is the result, as that of a product would be.
    dtype = torch.promote_types(q.dtype, cos.dtype)
    cos, sin = cos.to(dtype), sin.to(dtype)
    return fused(q.to(dtype), cos, sin), fused(k.to(dtype), cos, sin)


def _declare(name: str, model: str, function: str, implementation: Callable[..., Pair]) -> None:
    target = f"{modeling(model)}:{function}"
    declare(
        f"{name}_in_{model}",
        target,
        implementation,
        why="The rotation of queries and keys is ten small kernels in every layer.",
        how="Tensors on an NPU go through torch_npu.npu_rotary_mul if the angles are as wide as the heads.",
        requires=AllOf(Defines(target), Mentions(target, "rotate_half")),
    )


_declare("fuse_rotary", "qwen2", "apply_rotary_pos_emb", text)
_declare("fuse_multimodal_rotary", "qwen2_5_vl", "apply_multimodal_rotary_pos_emb", multimodal)
_declare("fuse_vision_rotary", "qwen2_5_vl", "apply_rotary_pos_emb_vision", vision)
_declare("fuse_rotary", "qwen3", "apply_rotary_pos_emb", text)
_declare("fuse_rotary", "qwen3_moe", "apply_rotary_pos_emb", text)
_declare("fuse_rotary", "qwen3_vl", "apply_rotary_pos_emb", text)
_declare("fuse_vision_rotary", "qwen3_vl", "apply_rotary_pos_emb_vision", vision)
_declare("fuse_rotary", "qwen3_vl_moe", "apply_rotary_pos_emb", text)
_declare("fuse_vision_rotary", "qwen3_vl_moe", "apply_rotary_pos_emb_vision", vision)
