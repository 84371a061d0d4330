"""Substitutes for CUDA in verl's fused loss: its check for CUDA tensors, and NVTX's ranges."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_IS_CUDA = "is_cuda"
_lock = threading.RLock()


@contextlib.contextmanager
def npu_counts_as_cuda(tensor: Tensor) -> Iterator[None]:
    """If `tensor` is on an NPU, make `is_cuda` true for NPU tensors, as torch_npu's transfer_to_npu does.

    Upstream also asserts `is_cuda` of tensors that it makes itself, so marking the given tensors is not enough.
    """
    import torch

    if tensor.is_cuda or tensor.device.type != "npu":
        yield
        return
    with _lock:
        setattr(torch.Tensor, _IS_CUDA, property(lambda each: each.device.type in ("cuda", "npu")))
        try:
            yield
        finally:
            # torch's own property is an attribute of the base class.
            delattr(torch.Tensor, _IS_CUDA)


def ignore_missing_nvtx() -> None:
    """Make torch's NVTX ranges do nothing if torch was built without NVTX, where they only raise an error."""
    import torch

    if not hasattr(torch._C, "_nvtx"):
        vars(torch.cuda.nvtx)["range"] = _no_range


@contextlib.contextmanager
def _no_range(_message: str, *_given: object, **_named: object) -> Iterator[None]:
    yield
