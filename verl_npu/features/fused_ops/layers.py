"""Norms, gated feed-forward layers, and rotary embeddings with torch_npu's fused operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ...registry.source.probe import AllOf, Calls, Defines, Reads
from . import Operator, declare, is_plain, modeling, operator, promoted

if TYPE_CHECKING:
    from torch import Tensor


class Norm(Protocol):
    """A transformers RMS norm."""

    weight: Tensor
    variance_epsilon: float


def rms_norm(original: Callable[[Norm, Tensor], Tensor], norm: Norm, hidden_states: Tensor) -> Tensor:
    """Normalize hidden_states [..., width]. The result has the same shape, and the dtype of hidden_states * weight."""
    npu_rms_norm = operator("npu_rms_norm", hidden_states)
    if npu_rms_norm is None or not is_plain(norm.weight):
        return original(norm, hidden_states)
    x, weight = promoted(hidden_states, norm.weight)
    return npu_rms_norm(x, weight, epsilon=norm.variance_epsilon)[0]


def _declare_norm(model: str, owner: str) -> None:
    target = f"{modeling(model)}:{owner}.forward"
    declare(
        f"fuse_norm_in_{model}_{owner}",
        target,
        rms_norm,
        uses=(f"{modeling(model)}:{owner}.weight",),
        why="Each norm runs five small kernels with three passes over memory. If the weight and the input have "
        "different dtypes, upstream's fused norm fails or changes the dtype of the result.",
        how="torch_npu.npu_rms_norm computes the norm of NPU tensors, after a cast of input and weight to one dtype.",
        requires=AllOf(Reads(target, "variance_epsilon"), Calls(target, "rsqrt")),
    )


_declare_norm("qwen2", "Qwen2RMSNorm")
_declare_norm("qwen2_5_vl", "Qwen2RMSNorm")
_declare_norm("qwen2_5_vl", "Qwen2_5_VLRMSNorm")
_declare_norm("qwen3", "Qwen3RMSNorm")
_declare_norm("qwen3_moe", "Qwen3MoeRMSNorm")
_declare_norm("qwen3_vl", "Qwen3VLTextRMSNorm")
_declare_norm("qwen3_vl_moe", "Qwen3VLMoeTextRMSNorm")


class Activation(Protocol):
    """An activation module."""

    _forward_hooks: Sized
    _forward_pre_hooks: Sized


class GatedLayer(Protocol):
    """A transformers gated feed-forward layer."""

    act_fn: Activation
    gate_proj: Callable[[Tensor], Tensor]
    up_proj: Callable[[Tensor], Tensor]
    down_proj: Callable[[Tensor], Tensor]


def is_silu(function: Activation) -> bool:
    """Return whether an activation is SiLU and has no hooks."""
    import torch

    silu = isinstance(function, torch.nn.SiLU) or type(function).__name__ == "SiLUActivation"
    return silu and not (function._forward_hooks or function._forward_pre_hooks)


def gated(original: Callable[[GatedLayer, Tensor], Tensor], mlp: GatedLayer, x: Tensor) -> Tensor:
    """Run a gated feed-forward layer. `x` and the result are [..., width]. The projections are called as modules, so
    that adapters and hooks still work."""
    npu_swiglu = operator("npu_swiglu", x) if is_silu(mlp.act_fn) else None
    if npu_swiglu is None:
        return original(mlp, x)
    import torch

    return mlp.down_proj(npu_swiglu(torch.cat((mlp.gate_proj(x), mlp.up_proj(x)), dim=-1), dim=-1))


def _declare_mlp(model: str, owner: str) -> None:
    target = f"{modeling(model)}:{owner}.forward"
    declare(
        f"fuse_swiglu_in_{model}_{owner}",
        target,
        gated,
        why="The activation and the product run as two kernels, each with a pass over memory.",
        how="If the activation is SiLU, torch_npu.npu_swiglu computes both for NPU tensors.",
        requires=AllOf(*(Calls(target, name) for name in ("gate_proj", "up_proj", "down_proj", "act_fn"))),
    )


_declare_mlp("qwen2", "Qwen2MLP")
_declare_mlp("qwen2_5_vl", "Qwen2MLP")
_declare_mlp("qwen2_5_vl", "Qwen2_5_VLMLP")
_declare_mlp("qwen3", "Qwen3MLP")
_declare_mlp("qwen3_moe", "Qwen3MoeMLP")
_declare_mlp("qwen3_vl", "Qwen3VLTextMLP")
_declare_mlp("qwen3_vl_moe", "Qwen3VLMoeTextMLP")


ROTARY_MUL_WIDTH = 896
"""`npu_rotary_mul` needs heads that are narrower than this (torch_npu-npu_rotary_mul.md)."""

Pair: TypeAlias = "tuple[Tensor, Tensor]"


def text(
    original: Callable[..., Pair], q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: object, **kwargs: object
) -> Pair:
    """Apply rotary embeddings for text tokens: rotate q and k, both [batch, heads, seqlen, width], by cos and sin
    [batch, seqlen, width]."""
    axis = kwargs.get("unsqueeze_dim", 1)
    npu_rotary_mul = None if args else _rotary_mul(q, k, cos, sin)
    if npu_rotary_mul is None:
        return original(q, k, cos, sin, *args, **kwargs)
    return _rotated(npu_rotary_mul, q, k, cos.unsqueeze(axis), sin.unsqueeze(axis))


def multimodal(
    original: Callable[..., Pair],
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    mrope_section: Sequence[int],
    unsqueeze_dim: int = 1,
) -> Pair:
    """Apply multimodal rotary embeddings, as `text` does, but with cos and sin of shape [3, batch, seqlen, width].

    Each section of the head dimension is rotated by the angles of time, height, or width.
    """
    import torch

    npu_rotary_mul = _rotary_mul(q, k, cos, sin)
    if npu_rotary_mul is None:
        return original(q, k, cos, sin, mrope_section, unsqueeze_dim)

    def chosen(angles: Tensor) -> Tensor:
        parts = angles.split(list(mrope_section) * 2, dim=-1)
        return torch.cat([part[n % 3] for n, part in enumerate(parts)], dim=-1).unsqueeze(unsqueeze_dim)

    return _rotated(npu_rotary_mul, q, k, chosen(cos), chosen(sin))


def vision(original: Callable[..., Pair], q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """Apply rotary embeddings to image patches in float32: rotate q and k, both [patches, heads, width], by cos and
    sin [patches, width]."""
    npu_rotary_mul = _rotary_mul(q, k, cos, sin) if q.dim() == 3 and cos.dim() == 2 else None
    if npu_rotary_mul is None:
        return original(q, k, cos, sin)
    cos, sin = (angles.float()[None, :, None] for angles in (cos, sin))
    first, second = (npu_rotary_mul(x.float().unsqueeze(0), cos, sin).squeeze(0).to(x.dtype) for x in (q, k))
    return first, second


def _rotary_mul(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Operator | None:
    width = q.shape[-1]
    fits = width == k.shape[-1] == cos.shape[-1] == sin.shape[-1] and width % 2 == 0 and width < ROTARY_MUL_WIDTH
    one_dtype = q.dtype == k.dtype and cos.dtype == sin.dtype
    return operator("npu_rotary_mul", q) if fits and one_dtype and k.numel() else None


def _rotated(npu_rotary_mul: Operator, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    import torch

    # float32 angles give a float32 result, as a plain product would.
    dtype = torch.promote_types(q.dtype, cos.dtype)
    cos, sin = cos.to(dtype), sin.to(dtype)
    return npu_rotary_mul(q.to(dtype), cos, sin), npu_rotary_mul(k.to(dtype), cos, sin)


def _declare_rotary(name: str, model: str, function: str, implementation: Callable[..., Pair]) -> None:
    target = f"{modeling(model)}:{function}"
    declare(
        f"{name}_in_{model}",
        target,
        implementation,
        why="The rotation of queries and keys runs ten small kernels in every layer.",
        how="If the angles are as wide as the heads, torch_npu.npu_rotary_mul rotates NPU tensors.",
        requires=AllOf(Defines(target), Calls(target, "rotate_half")),
    )


_declare_rotary("fuse_rotary", "qwen2", "apply_rotary_pos_emb", text)
_declare_rotary("fuse_multimodal_rotary", "qwen2_5_vl", "apply_multimodal_rotary_pos_emb", multimodal)
# From transformers 5.17 on, the angles arrive with their sections already selected, as in Qwen3-VL from the start.
_declare_rotary("fuse_rotary", "qwen2_5_vl", "apply_rotary_pos_emb", text)
_declare_rotary("fuse_vision_rotary", "qwen2_5_vl", "apply_rotary_pos_emb_vision", vision)
_declare_rotary("fuse_rotary", "qwen3", "apply_rotary_pos_emb", text)
_declare_rotary("fuse_rotary", "qwen3_moe", "apply_rotary_pos_emb", text)
_declare_rotary("fuse_rotary", "qwen3_vl", "apply_rotary_pos_emb", text)
_declare_rotary("fuse_vision_rotary", "qwen3_vl", "apply_rotary_pos_emb_vision", vision)
_declare_rotary("fuse_rotary", "qwen3_vl_moe", "apply_rotary_pos_emb", text)
_declare_rotary("fuse_vision_rotary", "qwen3_vl_moe", "apply_rotary_pos_emb_vision", vision)
