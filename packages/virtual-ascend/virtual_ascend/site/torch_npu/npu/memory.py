"""Device memory. It is host memory that is counted for each NPU. An NPU has VIRTUAL_ASCEND_MEMORY GiB (64 by default).

`allocated` counts live blocks, rounded up to 512 bytes. There is no cache. `reserved` is the highest `allocated` since
the last `empty_cache`. A caching allocator without fragmentation would hold the same amount.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import torch
from virtual_ascend.device.extension import extension

from torch_npu._unimplemented import is_older_than, missing, not_implemented
from torch_npu.npu.device import _get_device_index

if TYPE_CHECKING:
    from torch_npu.npu.device import Place

_C = extension()


def memory_stats(device: Place = None) -> OrderedDict[str, int]:
    """Return the counters of one NPU, with torch's names and in torch's order."""
    return OrderedDict(sorted(_C.memory_stats(_get_device_index(device)).items()))


def memory_stats_as_nested_dict(device: Place = None) -> dict[str, object]:
    """Return `memory_stats` as nested dictionaries, one level for each dot in a name."""
    nested: dict[str, object] = {}
    for name, value in memory_stats(device).items():
        *path, last = name.split(".")
        level = nested
        for part in path:
            level = cast("dict[str, object]", level.setdefault(part, {}))
        level[last] = value
    return nested


def memory_allocated(device: Place = None) -> int:
    """Return the number of bytes that live tensors occupy."""
    return memory_stats(device)["allocated_bytes.all.current"]


def max_memory_allocated(device: Place = None) -> int:
    """Return the peak number of bytes that live tensors have occupied since the last reset."""
    return memory_stats(device)["allocated_bytes.all.peak"]


def memory_reserved(device: Place = None) -> int:
    """Return the number of reserved bytes. The docstring of this module defines reserved bytes."""
    return memory_stats(device)["reserved_bytes.all.current"]


def max_memory_reserved(device: Place = None) -> int:
    """Return the peak number of bytes that have been reserved since the last reset."""
    return memory_stats(device)["reserved_bytes.all.peak"]


memory_cached = memory_reserved
max_memory_cached = max_memory_reserved


def reset_peak_memory_stats(device: Place = None) -> None:
    """Reset the peak counters of an NPU to their current values."""
    _C.reset_peak(_get_device_index(device))


reset_max_memory_allocated = reset_peak_memory_stats
reset_max_memory_cached = reset_peak_memory_stats


def reset_accumulated_memory_stats(device: Place = None) -> None:
    """Reset the accumulated counters of an NPU to zero. Between resets, these counters only increase."""
    _C.reset_accumulated(_get_device_index(device))


def empty_cache() -> None:
    """Release the reserved memory that no tensor occupies."""
    _C.empty_cache()


def ipc_collect() -> None:
    """Do nothing: processes do not share device memory."""


def mem_get_info(device: Place = None) -> tuple[int, int]:
    """Return the free and the total memory of an NPU in bytes. The memory of other processes is treated as free."""
    total = int(_C.total_memory())
    return total - memory_reserved(device), total


def set_per_process_memory_fraction(fraction: float, device: Place = None) -> None:
    """Limit this process to a fraction of an NPU's memory. An allocation beyond this limit raises
    torch.OutOfMemoryError.

    Raises:
        TypeError: `fraction` is not a float.
        ValueError: `fraction` is not from 0 to 1.
    """
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    index = _get_device_index(device)
    _C.set_memory_fraction(index, fraction)
    _fractions[index] = fraction


_fractions: dict[int, float] = {}


def get_per_process_memory_fraction(device: Place = None) -> float:
    """Return the fraction of an NPU's memory that this process may use. The default is 1."""
    return _fractions.get(_get_device_index(device), 1.0)


def get_allocator_backend() -> str:
    """Return the name of the allocator. There is only one allocator."""
    return "native"


_raw: dict[int, torch.Tensor] = {}


def caching_allocator_alloc(size: int, device: Place = None, stream: object = None) -> int:
    """Allocate `size` bytes of an NPU's memory, and return their address. `caching_allocator_delete` frees them.

    Raises:
        torch.OutOfMemoryError: the NPU does not have enough free memory.
    """
    block = torch.empty(size, dtype=torch.uint8, device=torch.device("npu", _get_device_index(device)))
    _raw[block.data_ptr()] = block
    return int(block.data_ptr())


def caching_allocator_delete(mem_ptr: int) -> None:
    """Free memory that `caching_allocator_alloc` allocated.

    Raises:
        RuntimeError: the address was not returned by caching_allocator_alloc.
    """
    if _raw.pop(mem_ptr, None) is None:
        raise RuntimeError(f"invalid device pointer: expected one from caching_allocator_alloc; found {mem_ptr:#x}")


_SUMMARY = (  # each counter, its name in the summary, and whether it counts bytes
    ("allocated_bytes", "Allocated memory", True),
    ("active_bytes", "Active memory", True),
    ("reserved_bytes", "NPU reserved memory", True),
    ("inactive_split_bytes", "Non-releasable memory", True),
    ("allocation", "Allocations", False),
    ("active", "Active allocs", False),
    ("segment", "NPU reserved segments", False),
    ("inactive_split", "Non-releasable allocs", False),
)
_OVERSIZE = (("oversize_allocations", "Oversize allocations"), ("oversize_segments", "Oversize NPU segments"))
_COLUMNS = {"current": "Cur Usage", "peak": "Peak Usage", "allocated": "Tot Alloc", "freed": "Tot Freed"}


def _amount(value: int, of_bytes: bool) -> str:
    # Choose the unit that leaves at most six digits.
    units = ("B ", "KB", "MB", "GB", "TB", "PB") if of_bytes else ("  ", "K ", "M ")
    step = 1024 if of_bytes else 1000
    power = 0
    while value >= 768 * step and power < len(units) - 1:
        value //= step
        power += 1
    return f"{value:7d} {units[power]}"


def memory_summary(device: Place = None, abbreviated: bool = False) -> str:
    """Return the counters as a table with torch_npu's layout."""
    stats = memory_stats(device)
    ooms, retries = stats["num_ooms"], stats["num_alloc_retries"]
    thick, thin = "=" * 75, "-" * 75
    lines = [thick, f" {'':16} PyTorch NPU memory summary, device ID {_get_device_index(device):<18d} ", thin]
    lines += [f"  {'':9} NPU OOMs: {ooms:<13d} | {'':6} npuMalloc retries: {retries:<9d}  ", thick]
    lines.append(f" {'       Metric':<21} " + "".join(f"| {column:<10} " for column in _COLUMNS.values()))
    pools = {"all": ""} if abbreviated else {"all": "", "large_pool": "large pool", "small_pool": "small pool"}
    for counter, title, of_bytes in _SUMMARY:
        lines.append(thin)
        for pool, called in pools.items():
            amounts = (_amount(stats[f"{counter}.{pool}.{column}"], of_bytes) for column in _COLUMNS)
            name = f"      from {called}" if called else title
            lines.append(f" {name:<21} " + "".join(f"| {amount} " for amount in amounts))
    for counter, title in _OVERSIZE:
        amounts = (_amount(stats[f"{counter}.{column}"], of_bytes=False) for column in _COLUMNS)
        lines += [thin, f" {title:<21} " + "".join(f"| {amount} " for amount in amounts)]
    return "".join(f"|{line}|\n" for line in [*lines, thick])


def _record_memory_history(enabled: str | None = "all", **_options: object) -> None:
    """Accept None, which stops recording; recording is not implemented."""
    if enabled is not None:
        not_implemented("torch_npu.npu.memory._record_memory_history")()


_dump_snapshot = not_implemented("torch_npu.npu.memory._dump_snapshot")
_snapshot = not_implemented("torch_npu.npu.memory._snapshot")

OutOfMemoryError = torch.OutOfMemoryError


class _Functions:
    """The addresses of the two functions of a pluggable allocator, for a MemPool."""

    __slots__ = ("free", "malloc")

    def __init__(self, malloc: int, free: int) -> None:
        self.malloc, self.free = malloc, free


class NPUPluggableAllocator:
    """An allocator in a compiled library: `void* malloc(ssize_t, int device, stream)` and
    `void free(void*, ssize_t, int device, stream)`.

    Without a path, the functions are looked up in the virtual device, which has the functions of vllm-ascend's
    allocator.
    """

    def __init__(self, path_to_so_file: str | None, alloc_fn_name: str, free_fn_name: str) -> None:
        library = ctypes.CDLL(path_to_so_file or _C.__file__)
        functions = (getattr(library, name) for name in (alloc_fn_name, free_fn_name))
        addresses = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)
        self._allocator = _Functions(*addresses)

    def allocator(self) -> _Functions:
        """Return the allocator for a MemPool."""
        return self._allocator


class MemPool:
    """A memory pool that gets its memory from a given allocator or, without an allocator, from the device."""

    def __init__(self, allocator: _Functions | None = None) -> None:
        self._allocator = allocator

    @property
    def allocator(self) -> _Functions | None:
        """The allocator of the pool."""
        return self._allocator

    if not is_older_than("2.13.0"):
        del allocator


@contextmanager
def use_mem_pool(pool: MemPool, device: Place = None) -> Iterator[None]:
    """Context manager that allocates this thread's NPU memory from the pool."""
    allocator = pool._allocator
    if allocator is None:
        yield
        return
    _C.begin_pool(allocator.malloc, allocator.free)
    try:
        yield
    finally:
        _C.end_pool()


globals().update(missing("torch_npu.npu.memory", globals()))
