"""torch_npu.multiprocessing: tensors of NPUs go from process to process."""

from __future__ import annotations

from torch_npu.multiprocessing import reductions

__all__ = ["reductions"]
