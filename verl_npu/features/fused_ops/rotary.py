"""Rotary position embeddings through `npu_rotary_mul`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...registry.source.probe import AllOf, Defines, Mentions
from .feature import LINK, UPSTREAM_DOES_IT, fused_ops, modeling, named
from .operator import operator

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["multimodal", "text", "vision"]

# Above it the operator refuses: op-plugin, torch_npu-npu_rotary_mul.md.
_WIDEST = 896


def text(
    original: Callable[..., Any], q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any
) -> Any:
    """q [batch, heads, seqlen, width], k alike, cos and sin [batch, seqlen, width] -> q and k, turned."""
    axis = kwargs.get("unsqueeze_dim", 1)
    fused = None if args else _fused(q, k, cos, sin)
    if fused is None:
        return original(q, k, cos, sin, *args, **kwargs)
    return _turned(fused, q, k, cos.unsqueeze(axis), sin.unsqueeze(axis))


def multimodal(
    original: Callable[..., Any],
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    mrope_section: Sequence[int],
    unsqueeze_dim: int = 1,
) -> Any:
    """As `text`, with cos and sin [3, batch, seqlen, width]: sections of the width turn by time, height or width."""
    import torch

    fused = _fused(q, k, cos, sin)
    if fused is None:
        return original(q, k, cos, sin, mrope_section, unsqueeze_dim)

    def chosen(angles: Tensor) -> Tensor:
        parts = angles.split(list(mrope_section) * 2, dim=-1)
        return torch.cat([part[n % 3] for n, part in enumerate(parts)], dim=-1).unsqueeze(unsqueeze_dim)

    return _turned(fused, q, k, chosen(cos), chosen(sin))


def vision(original: Callable[..., Any], q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
    """q [patches, heads, width], k alike, cos and sin [patches, width] -> q and k, turned in float32 and cast back."""
    fused = _fused(q, k, cos, sin) if q.dim() == 3 and cos.dim() == 2 else None
    if fused is None:
        return original(q, k, cos, sin)
    cos, sin = (angles.float()[None, :, None] for angles in (cos, sin))
    turned = (fused(x.float().unsqueeze(0), cos, sin).squeeze(0).to(x.dtype) for x in (q, k))
    return tuple(turned)


def _fused(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Callable[..., Any] | None:
    width = q.shape[-1]
    fits = q.shape[-1] == k.shape[-1] == cos.shape[-1] == sin.shape[-1] and width % 2 == 0 and width < _WIDEST
    one_dtype = q.dtype == k.dtype and cos.dtype == sin.dtype
    return operator("npu_rotary_mul", q) if fits and one_dtype and k.numel() else None


def _turned(fused: Callable[..., Any], q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    import torch

    # Angles in float32 make the result float32, as a product would.
    dtype = torch.promote_types(q.dtype, cos.dtype)
    cos, sin = cos.to(dtype), sin.to(dtype)
    return fused(q.to(dtype), cos, sin), fused(k.to(dtype), cos, sin)


def _declare() -> None:
    multi, plain, patches = "apply_multimodal_rotary_pos_emb", "apply_rotary_pos_emb", "apply_rotary_pos_emb_vision"
    for model, function, implementation in (
        ("qwen2", plain, text),
        ("qwen2_5_vl", multi, multimodal),
        ("qwen2_5_vl", patches, vision),
        ("qwen3", plain, text),
        ("qwen3_moe", plain, text),
        ("qwen3_vl", plain, text),
        ("qwen3_vl", patches, vision),
        ("qwen3_vl_moe", plain, text),
        ("qwen3_vl_moe", patches, vision),
    ):
        target = f"{modeling(model)}:{function}"
        fused_ops.wrap(
            target,
            why="turning queries and keys is ten small kernels in every layer",
            how="torch_npu.npu_rotary_mul on tensors that are on an NPU, where the angles are as wide as the heads",
            link=LINK,
            retired_by=UPSTREAM_DOES_IT,
            requires=AllOf(Defines(target), Mentions(target, "rotate_half")),
        )(named(f"{model}_{function}", implementation))


_declare()
