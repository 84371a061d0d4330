"""Substitutes for CUDA in verl's fused loss: for its check that tensors are on CUDA, and for its NVTX ranges."""

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
    """Context manager that makes `is_cuda` true for all NPU tensors if `tensor` is an NPU tensor, as torch_npu's
    transfer_to_npu does.

    Marking only the given tensors is not enough, because upstream also asserts `is_cuda` for tensors that it creates.
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
    """If torch was built without NVTX, make its NVTX ranges do nothing. Otherwise they would raise an error."""
    import torch

    if not hasattr(torch._C, "_nvtx"):
        vars(torch.cuda.nvtx)["range"] = _no_range


@contextlib.contextmanager
def _no_range(_message: str, *_given: object, **_named: object) -> Iterator[None]:
    yield
