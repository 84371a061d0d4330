"""Gated feed-forward layers through `npu_swiglu`."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import TYPE_CHECKING, Protocol

from ...registry.source.probe import AllOf, Mentions
from .feature import declare, modeling
from .operator import operator

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Activation", "gated", "is_silu"]


class Activation(Protocol):
    """A module that is an activation."""

    _forward_hooks: Sized
    _forward_pre_hooks: Sized


class GatedLayer(Protocol):
    """A gated feed-forward layer of transformers."""

    act_fn: Activation
    gate_proj: Callable[[Tensor], Tensor]
    up_proj: Callable[[Tensor], Tensor]
    down_proj: Callable[[Tensor], Tensor]


def is_silu(function: Activation) -> bool:
    """Return whether an activation is SiLU, without hooks on it."""
    import torch

    silu = isinstance(function, torch.nn.SiLU) or type(function).__name__ == "SiLUActivation"
    return silu and not (function._forward_hooks or function._forward_pre_hooks)


def gated(original: Callable[[GatedLayer, Tensor], Tensor], mlp: GatedLayer, x: Tensor) -> Tensor:
    """x [..., width] -> [..., width]. The three projections are called as modules: adapters and hooks on them work."""
    fused = operator("npu_swiglu", x) if is_silu(mlp.act_fn) else None
    if fused is None:
        return original(mlp, x)
    import torch

    return mlp.down_proj(fused(torch.cat((mlp.gate_proj(x), mlp.up_proj(x)), dim=-1), dim=-1))


def _declare(model: str, owner: str) -> None:
    target = f"{modeling(model)}:{owner}.forward"
    declare(
        f"fuse_swiglu_in_{model}_{owner}",
        target,
        gated,
        why="The activation and its product are two kernels, each with a pass over memory.",
        how="Tensors on an NPU go through torch_npu.npu_swiglu if the activation is SiLU.",
        requires=AllOf(*(Mentions(target, name) for name in ("gate_proj", "up_proj", "down_proj", "act_fn"))),
    )


_declare("qwen2", "Qwen2MLP")
_declare("qwen2_5_vl", "Qwen2MLP")
_declare("qwen2_5_vl", "Qwen2_5_VLMLP")
_declare("qwen3", "Qwen3MLP")
_declare("qwen3_moe", "Qwen3MoeMLP")
_declare("qwen3_vl", "Qwen3VLTextMLP")
_declare("qwen3_vl_moe", "Qwen3VLMoeTextMLP")
