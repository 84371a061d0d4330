"""Device memory: host memory with an account per NPU (VERL_NPU_VIRTUAL_MEMORY GiB each, 64 unless set).

`allocated` counts live blocks, rounded up to 512 bytes. There is no cache: `reserved` is the highest `allocated` since
the last `empty_cache`, which is what a caching allocator without fragmentation would hold.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_npu._unimplemented import not_implemented
from torch_npu.npu.device import _get_device_index
from verl_npu.virtual.loading import extension

_C = extension()


def memory_stats(device: Any = None) -> dict[str, int]:
    """Counters of one NPU, under torch's names."""
    return dict(_C.memory_stats(_get_device_index(device)))


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """`memory_stats`, with the dots of the names as levels."""
    nested: dict[str, Any] = {}
    for name, value in memory_stats(device).items():
        *path, last = name.split(".")
        level = nested
        for part in path:
            level = level.setdefault(part, {})
        level[last] = value
    return nested


def memory_allocated(device: Any = None) -> int:
    """Bytes in live tensors."""
    return memory_stats(device)["allocated_bytes.all.current"]


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes in live tensors since the last reset."""
    return memory_stats(device)["allocated_bytes.all.peak"]


def memory_reserved(device: Any = None) -> int:
    """Bytes held; see the module's docstring."""
    return memory_stats(device)["reserved_bytes.all.current"]


def max_memory_reserved(device: Any = None) -> int:
    """The most bytes held since the last reset."""
    return memory_stats(device)["reserved_bytes.all.peak"]


memory_cached = memory_reserved
max_memory_cached = max_memory_reserved


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let the peaks start from the present."""
    _C.reset_peak(_get_device_index(device))


reset_max_memory_allocated = reset_peak_memory_stats
reset_max_memory_cached = reset_peak_memory_stats


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Set the running totals to nothing."""
    _C.reset_accumulated(_get_device_index(device))


def empty_cache() -> None:
    """Give back what is reserved and not allocated."""
    _C.empty_cache()


def ipc_collect() -> None:
    """Nothing is shared between processes by device memory."""


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes, as this process alone sees them."""
    total = int(_C.total_memory())
    return total - memory_reserved(device), total


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Limit this process to a part of an NPU's memory; beyond it, torch.OutOfMemoryError.

    Raises:
        TypeError: not a float.
        ValueError: not from 0 to 1.
    """
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _C.set_memory_fraction(_get_device_index(device), fraction)


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """The counters as text."""
    rows = memory_stats(device).items()
    title = f"torch.npu memory of npu:{_get_device_index(device)} (virtual Ascend)"
    return "\n".join([title, *(f"  {name:<40} {value:>16}" for name, value in rows)])


def _record_memory_history(enabled: str | None = "all", **_options: Any) -> None:
    """Stop recording is accepted; recording is not implemented."""
    if enabled is not None:
        not_implemented("torch_npu.npu.memory._record_memory_history")()


memory_snapshot = not_implemented("torch_npu.npu.memory_snapshot")
_dump_snapshot = not_implemented("torch_npu.npu.memory._dump_snapshot")
_snapshot = not_implemented("torch_npu.npu.memory._snapshot")
caching_allocator_alloc = not_implemented("torch_npu.npu.caching_allocator_alloc")
caching_allocator_delete = not_implemented("torch_npu.npu.caching_allocator_delete")

OutOfMemoryError = torch.OutOfMemoryError
