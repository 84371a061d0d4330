"""The operators of the torch_npu that is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ... import reporting

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["is_plain", "operator", "promoted"]


def operator(
    name: str, tensor: Tensor, otherwise: str = "what uses it stays as it is upstream"
) -> Callable[..., Any] | None:
    """torch_npu's operator `name` for a tensor on an NPU; None elsewhere, and where this build does not have it.

    Says so once where the build does not have it, and what happens `otherwise`.
    """
    if tensor.device.type != "npu" or tensor.numel() == 0:
        return None
    import torch_npu

    found: Callable[..., Any] | None = getattr(torch_npu, name, None)
    if found is None:
        version = getattr(torch_npu, "__version__", "of unknown version")
        reporting.report(f"torch_npu {version} has no {name}: {otherwise}")
    return found


def is_plain(*tensors: Any) -> bool:
    """Whether these are tensors or parameters themselves: a DTensor or a quantised subclass has its own ways."""
    import torch

    return all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in tensors)


def promoted(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the dtype that a product of the two has; the operators want one dtype."""
    import torch

    dtype = torch.promote_types(first.dtype, second.dtype)
    return first.to(dtype), second.to(dtype)
