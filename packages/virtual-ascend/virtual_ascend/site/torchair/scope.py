"""torchair.scope: settings for a region of a graph. There are no graphs here, so every function raises."""

from __future__ import annotations

from torch_npu._unimplemented import not_implemented

__all__ = ["limit_core_num", "npu_stream_switch", "npu_wait_tensor", "super_kernel"]

limit_core_num = not_implemented("torchair.scope.limit_core_num")
npu_stream_switch = not_implemented("torchair.scope.npu_stream_switch")
npu_wait_tensor = not_implemented("torchair.scope.npu_wait_tensor")
super_kernel = not_implemented("torchair.scope.super_kernel")
