"""RMS norms through `npu_rms_norm`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ...registry.source.probe import AllOf, Mentions
from .feature import declare, modeling
from .operator import is_plain, operator, promoted

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["rms_norm"]


class Norm(Protocol):
    """An RMS norm of transformers."""

    weight: Tensor
    variance_epsilon: float


def rms_norm(original: Callable[[Norm, Tensor], Tensor], norm: Norm, hidden_states: Tensor) -> Tensor:
    """hidden_states [..., width] -> the same shape, in the dtype that its product with the weight has."""
    fused = operator("npu_rms_norm", hidden_states)
    if fused is None or not is_plain(norm.weight):
        return original(norm, hidden_states)
    x, weight = promoted(hidden_states, norm.weight)
    return fused(x, weight, epsilon=norm.variance_epsilon)[0]


def _declare(model: str, owner: str) -> None:
    target = f"{modeling(model)}:{owner}.forward"
    declare(
        f"fuse_norm_in_{model}_{owner}",
        target,
        rms_norm,
        why="Each norm is five small kernels with three passes over memory. Upstream's fused norm fails, or changes "
        "the result's dtype, if the weight has another dtype than the input.",
        how="Tensors on an NPU go through torch_npu.npu_rms_norm, together with the weight in their common dtype.",
        requires=AllOf(Mentions(target, "variance_epsilon"), Mentions(target, "rsqrt")),
    )


_declare("qwen2", "Qwen2RMSNorm")
_declare("qwen2_5_vl", "Qwen2RMSNorm")
_declare("qwen2_5_vl", "Qwen2_5_VLRMSNorm")
_declare("qwen3", "Qwen3RMSNorm")
_declare("qwen3_moe", "Qwen3MoeRMSNorm")
_declare("qwen3_vl", "Qwen3VLTextRMSNorm")
_declare("qwen3_vl_moe", "Qwen3VLMoeTextRMSNorm")
