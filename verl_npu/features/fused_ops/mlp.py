"""Gated feed-forward layers through `npu_swiglu`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...registry.source.probe import AllOf, Mentions
from .feature import LINK, UPSTREAM_DOES_IT, fused_ops, modeling, named
from .operator import operator

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["gated", "is_silu"]

_CLASSES = (
    ("qwen2", "Qwen2MLP"),
    ("qwen2_5_vl", "Qwen2MLP"),
    ("qwen2_5_vl", "Qwen2_5_VLMLP"),
    ("qwen3", "Qwen3MLP"),
    ("qwen3_moe", "Qwen3MoeMLP"),
    ("qwen3_vl", "Qwen3VLTextMLP"),
    ("qwen3_vl_moe", "Qwen3VLMoeTextMLP"),
)


def is_silu(function: Any) -> bool:
    """Whether an activation is SiLU, and nothing but that: no hooks on it."""
    import torch

    silu = isinstance(function, torch.nn.SiLU) or type(function).__name__ == "SiLUActivation"
    return silu and not (function._forward_hooks or function._forward_pre_hooks)


def gated(original: Callable[..., Any], mlp: Any, x: Tensor) -> Any:
    """x [..., width] -> [..., width]. The three projections are called as modules: adapters and hooks on them work."""
    fused = operator("npu_swiglu", x) if is_silu(mlp.act_fn) else None
    if fused is None:
        return original(mlp, x)
    import torch

    return mlp.down_proj(fused(torch.cat((mlp.gate_proj(x), mlp.up_proj(x)), dim=-1), dim=-1))


def _declare() -> None:
    for model, owner in _CLASSES:
        target = f"{modeling(model)}:{owner}.forward"
        fused_ops.wrap(
            target,
            why="the activation and its product are two kernels with a pass over memory each",
            how="torch_npu.npu_swiglu on tensors that are on an NPU, where the activation is SiLU",
            link=LINK,
            retired_by=UPSTREAM_DOES_IT,
            requires=AllOf(*(Mentions(target, name) for name in ("gate_proj", "up_proj", "down_proj", "act_fn"))),
        )(named(f"{model}_{owner}", gated))


_declare()
