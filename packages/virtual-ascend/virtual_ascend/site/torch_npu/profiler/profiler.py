"""torch_npu's module with `analyse`. The other names of this module are also in `torch_npu.profiler`."""

from __future__ import annotations

from torch_npu._unimplemented import not_implemented
from torch_npu.profiler.options import supported_activities
from torch_npu.profiler.trace import profile, tensorboard_trace_handler

__all__ = ["analyse", "profile", "supported_activities", "tensorboard_trace_handler"]

analyse = not_implemented("torch_npu.profiler.profiler.analyse")
