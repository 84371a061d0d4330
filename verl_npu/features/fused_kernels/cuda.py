"""What verl's fused loss asks of CUDA, where there is none: that its tensors are CUDA's, and NVTX's ranges."""

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
def taken_for_cuda(tensor: Tensor) -> Iterator[None]:
    """Have tensors of NPUs say that they are CUDA's, as torch_npu's transfer_to_npu has them, if `tensor` is an NPU's.

    Upstream asserts it of tensors that it makes itself, too, so that it is not enough to say it of those it is given.
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
            # torch's own is an attribute of its base class.
            delattr(torch.Tensor, _IS_CUDA)


def without_missing_ranges() -> None:
    """Have torch's NVTX ranges do nothing where torch was built without NVTX: all that they do there is to raise."""
    import torch

    if not hasattr(torch._C, "_nvtx"):
        vars(torch.cuda.nvtx)["range"] = _no_range


@contextlib.contextmanager
def _no_range(_message: str, *_given: object, **_named: object) -> Iterator[None]:
    yield
