"""torch_npu.utils, as far as it is looked at."""

from __future__ import annotations

from torch_npu._unimplemented import not_implemented
from torch_npu.utils import collect_env

__all__ = ["collect_env", "npu_combine_tensors"]

npu_combine_tensors = not_implemented("torch_npu.utils.npu_combine_tensors")
