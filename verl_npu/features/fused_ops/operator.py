"""The operators of the installed torch_npu."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from ... import reporting

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Operator", "is_plain", "operator", "promoted"]

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

    function: Operator | None = getattr(torch_npu, name, None)
    if function is None:
        version = getattr(torch_npu, "__version__", "of unknown version")
        reporting.report(f"torch_npu {version} has no {name}: {otherwise}")
    return function


def is_plain(*tensors: object) -> bool:
    """Return whether all are plain tensors or parameters: DTensors and quantised ones have operators of their own."""
    import torch

    return all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in tensors)


def promoted(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in the dtype that their product has, because the operators need one dtype."""
    import torch

    dtype = torch.promote_types(first.dtype, second.dtype)
    return first.to(dtype), second.to(dtype)
