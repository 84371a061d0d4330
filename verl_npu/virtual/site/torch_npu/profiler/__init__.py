"""torch_npu.profiler: the names and settings are real, and profiling itself raises. There is no NPU whose time could
be measured; torch.profiler measures what the CPU does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch.profiler import schedule

from torch_npu._unimplemented import not_implemented

__all__ = [
    "AiCMetrics",
    "ExportType",
    "ProfilerActivity",
    "ProfilerLevel",
    "_ExperimentalConfig",
    "profile",
    "schedule",
    "supported_activities",
    "tensorboard_trace_handler",
]


class ProfilerActivity(Enum):
    """What to record."""

    CPU = "CPU"
    NPU = "NPU"


class ProfilerLevel(Enum):
    """How much to record."""

    Level_none = "Level_none"
    Level0 = "Level0"
    Level1 = "Level1"
    Level2 = "Level2"


class AiCMetrics(Enum):
    """Which counters of the AI core to record."""

    AiCoreNone = "ACL_AICORE_NONE"
    PipeUtilization = "ACL_AICORE_PIPE_UTILIZATION"
    ArithmeticUtilization = "ACL_AICORE_ARITHMETIC_UTILIZATION"
    Memory = "ACL_AICORE_MEMORY_BANDWIDTH"
    MemoryL0 = "ACL_AICORE_L0B_AND_WIDTH"
    ResourceConflictRatio = "ACL_AICORE_RESOURCE_CONFLICT_RATIO"
    MemoryUB = "ACL_AICORE_MEMORY_UB"
    L2Cache = "ACL_AICORE_L2_CACHE"


class ExportType(Enum):
    """How to write the result."""

    Text = "text"
    Db = "db"


@dataclass(frozen=True, slots=True)
class _ExperimentalConfig:
    profiler_level: ProfilerLevel = ProfilerLevel.Level0
    aic_metrics: AiCMetrics = AiCMetrics.AiCoreNone
    l2_cache: bool = False
    msprof_tx: bool = False
    data_simplification: bool = True
    record_op_args: bool = False
    op_attr: bool = False
    gc_detect_threshold: float | None = None
    export_type: Any = None
    mstx: bool = False
    mstx_domain_include: tuple[str, ...] = ()
    mstx_domain_exclude: tuple[str, ...] = ()
    host_sys: tuple[Any, ...] = ()
    sys_io: bool = False
    sys_interconnection: bool = False


def supported_activities() -> set[ProfilerActivity]:
    """Nothing can be recorded."""
    return set()


def tensorboard_trace_handler(
    dir_name: str, worker_name: str | None = None, analyse_flag: bool = True, async_mode: bool = False
) -> Callable[[Any], None]:
    """A handler for `profile`, which raises before it could be called."""
    handler: Callable[[Any], None] = not_implemented("torch_npu.profiler.tensorboard_trace_handler(...)")
    return handler


profile = not_implemented("torch_npu.profiler.profile (use torch.profiler for the CPU's time)")
analyse = not_implemented("torch_npu.profiler.analyse")
