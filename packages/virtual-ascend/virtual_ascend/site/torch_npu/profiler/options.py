"""The options of a profiler, with the names of torch_npu 2.7.1."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ProfilerActivity(Enum):
    """A type of processor (CPU or NPU) whose activity is recorded."""

    CPU = "CPU"
    NPU = "NPU"


class ProfilerLevel(Enum):
    """The amount of detail to record."""

    Level_none = "Level_none"
    Level0 = "Level0"
    Level1 = "Level1"
    Level2 = "Level2"


class AiCMetrics(Enum):
    """The AI core counters to record."""

    AiCoreNone = "ACL_AICORE_NONE"
    PipeUtilization = "ACL_AICORE_PIPE_UTILIZATION"
    ArithmeticUtilization = "ACL_AICORE_ARITHMETIC_UTILIZATION"
    Memory = "ACL_AICORE_MEMORY_BANDWIDTH"
    MemoryL0 = "ACL_AICORE_L0B_AND_WIDTH"
    ResourceConflictRatio = "ACL_AICORE_RESOURCE_CONFLICT_RATIO"
    MemoryUB = "ACL_AICORE_MEMORY_UB"
    L2Cache = "ACL_AICORE_L2_CACHE"
    MemoryAccess = "ACL_AICORE_MEMORY_ACCESS"


class ExportType(Enum):
    """The file format of the profiling results."""

    Text = "text"
    Db = "db"


class HostSystem(Enum):
    """The host counters to record."""

    CPU = "cpu"
    MEM = "mem"
    DISK = "disk"
    NETWORK = "network"
    OSRT = "osrt"


@dataclass(frozen=True, slots=True)
class _ExperimentalConfig:
    profiler_level: ProfilerLevel = ProfilerLevel.Level0
    aic_metrics: AiCMetrics = AiCMetrics.AiCoreNone
    l2_cache: bool = False
    msprof_tx: bool = False
    mstx: bool = False
    data_simplification: bool = True
    record_op_args: bool = False
    op_attr: bool = False
    gc_detect_threshold: float | None = None
    export_type: object = None
    host_sys: object = ()
    mstx_domain_include: object = ()
    mstx_domain_exclude: object = ()
    sys_io: bool = False
    sys_interconnection: bool = False


def supported_activities() -> set[ProfilerActivity]:
    """Return the activities that a profiler accepts. virtual-ascend's profiler records none of them."""
    return set(ProfilerActivity)


def supported_profiler_level() -> set[ProfilerLevel]:
    """Return the levels that a profiler accepts."""
    return set(ProfilerLevel)


def supported_ai_core_metrics() -> set[AiCMetrics]:
    """Return the counters of the AI core that a profiler accepts."""
    return set(AiCMetrics)


def supported_export_type() -> set[ExportType]:
    """Return the formats that a profiler accepts."""
    return set(ExportType)
