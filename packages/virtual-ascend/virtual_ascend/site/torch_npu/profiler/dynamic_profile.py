"""torch_npu.profiler.dynamic_profile: a profiler that a file switches on. It is not implemented here."""

from __future__ import annotations

from torch_npu._unimplemented import not_implemented

__all__ = ["init", "start", "step"]

init = not_implemented("torch_npu.profiler.dynamic_profile.init")
start = not_implemented("torch_npu.profiler.dynamic_profile.start")
step = not_implemented("torch_npu.profiler.dynamic_profile.step")
