"""torch_npu.multiprocessing: sends NPU tensors from process to process."""

from __future__ import annotations

from torch_npu._unimplemented import is_older_than

if is_older_than("2.7.1"):
    raise ModuleNotFoundError(f"No module named {__name__!r}", name=__name__)

from torch_npu.multiprocessing import reductions

__all__ = ["reductions"]
