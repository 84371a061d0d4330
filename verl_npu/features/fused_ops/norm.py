"""RMS norms through `npu_rms_norm`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...registry.source.probe import AllOf, Mentions
from .feature import LINK, UPSTREAM_DOES_IT, fused_ops, modeling, named
from .operator import is_plain, operator, promoted

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["rms_norm"]

_CLASSES = (
    ("qwen2", "Qwen2RMSNorm"),
    ("qwen2_5_vl", "Qwen2RMSNorm"),
    ("qwen2_5_vl", "Qwen2_5_VLRMSNorm"),
    ("qwen3", "Qwen3RMSNorm"),
    ("qwen3_moe", "Qwen3MoeRMSNorm"),
    ("qwen3_vl", "Qwen3VLTextRMSNorm"),
    ("qwen3_vl_moe", "Qwen3VLMoeTextRMSNorm"),
)


def rms_norm(original: Callable[..., Any], norm: Any, hidden_states: Tensor) -> Any:
    """hidden_states [..., width] -> the same shape, in the dtype that its product with the weight has."""
    fused = operator("npu_rms_norm", hidden_states)
    if fused is None or not is_plain(norm.weight):
        return original(norm, hidden_states)
    x, weight = promoted(hidden_states, norm.weight)
    return fused(x, weight, epsilon=norm.variance_epsilon)[0]


def _declare() -> None:
    for model, owner in _CLASSES:
        target = f"{modeling(model)}:{owner}.forward"
        fused_ops.wrap(
            target,
            why="five small kernels and three passes over memory for each norm; and where upstream fuses it, a weight "
            "of another dtype than the input is an error or changes the result's dtype",
            how="torch_npu.npu_rms_norm on tensors that are on an NPU, both sides in their common dtype",
            link=LINK,
            retired_by=UPSTREAM_DOES_IT,
            requires=AllOf(Mentions(target, "variance_epsilon"), Mentions(target, "rsqrt")),
        )(named(f"{model}_{owner}", rms_norm))


_declare()
