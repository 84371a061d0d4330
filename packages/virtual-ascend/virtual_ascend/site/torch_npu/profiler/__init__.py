"""torch_npu.profiler with the real names and settings. A run leaves a valid, empty trace.

There is no NPU whose time could be measured; torch.profiler measures the work of the CPU.
"""

from __future__ import annotations

from torch_npu._unimplemented import leave_out
from torch_npu.profiler.options import (
    AiCMetrics,
    ExportType,
    HostSystem,
    ProfilerActivity,
    ProfilerLevel,
    _ExperimentalConfig,
    supported_activities,
    supported_ai_core_metrics,
    supported_export_type,
    supported_profiler_level,
)
from torch_npu.profiler.scheduler import ProfilerAction, schedule
from torch_npu.profiler.trace import _KinetoProfile, profile, tensorboard_trace_handler

__all__ = [
    "AiCMetrics",
    "ExportType",
    "HostSystem",
    "ProfilerAction",
    "ProfilerActivity",
    "ProfilerLevel",
    "_ExperimentalConfig",
    "_KinetoProfile",
    "profile",
    "schedule",
    "supported_activities",
    "supported_ai_core_metrics",
    "supported_export_type",
    "supported_profiler_level",
    "tensorboard_trace_handler",
]
__all__ = leave_out("torch_npu.profiler", globals(), __all__)
