"""The operators of the installed torch_npu."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from packaging.version import InvalidVersion, Version

from ... import reporting

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Operator", "is_plain", "operator", "promoted"]

_DIFFERENTIABLE_FROM = {"npu_moe_token_permute": "2.7.1", "npu_moe_token_unpermute": "2.7.1"}
"""The first torch_npu that computes an operator's gradient. 2.5.1 has these two, and leaves their gradients None."""

Operator: TypeAlias = Callable[..., Any]
"""A function of torch_npu, which has no types: it returns a tensor or several."""


def operator(name: str, tensor: Tensor, otherwise: str = "upstream's own code runs instead") -> Operator | None:
    """Return torch_npu's operator `name` for a tensor on an NPU.

    Returns None for a tensor on another device, and if this build of torch_npu lacks the operator; the user is told
    that once, and what happens `otherwise`.
    """
    if tensor.device.type != "npu" or tensor.numel() == 0:
        return None
    import torch_npu

    version = getattr(torch_npu, "__version__", "of unknown version")
    function: Operator | None = getattr(torch_npu, name, None)
    if function is None:
        reporting.report(f"torch_npu {version} has no {name}: {otherwise}")
        return None
    if _lacks_gradient(name, version):
        reporting.report(f"torch_npu {version} computes no gradient of {name}: {otherwise}")
        return None
    return function


def _lacks_gradient(name: str, version: str) -> bool:
    """Whether a gradient is wanted and the operator would give none, silently."""
    import torch

    first = _DIFFERENTIABLE_FROM.get(name)
    if first is None or not torch.is_grad_enabled():
        return False
    try:
        return Version(version) < Version(first)
    except InvalidVersion:
        return False


def is_plain(*tensors: object) -> bool:
    """Return whether all are plain tensors or parameters: DTensors and quantised ones have operators of their own."""
    import torch

    return all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in tensors)


def promoted(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in the dtype that their product has, because the operators need one dtype."""
    import torch

    dtype = torch.promote_types(first.dtype, second.dtype)
    return first.to(dtype), second.to(dtype)
