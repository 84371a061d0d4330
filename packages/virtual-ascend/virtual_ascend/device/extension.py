"""The compiled device of this process, and its Python interface (csrc/module.cpp)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from .. import variables
from ..errors import TorchError

if TYPE_CHECKING:
    from datetime import timedelta

    import torch
    from torch.distributed import Backend

Handle: TypeAlias = "tuple[int, int, int, int]"
"""An allocation as vllm-ascend describes it: the device, the size in bytes, the address, and a number that
virtual-ascend does not use."""


Tasks: TypeAlias = "list[tuple[str, list[tuple[str, int, list[int], list[int], str]]]]"
"""The tasks of a graph: each operator, with the names, addresses, shapes, strides, and dtypes of its tensors."""


class Group(Protocol):
    """A group of tasks in a graph. The arguments of these tasks can be changed after the capture."""


class Graph(Protocol):
    """A captured graph. The class is defined in csrc/graph_replay.h."""

    def capture_begin(self, pool: tuple[int, int], error_mode: str) -> None: ...
    def capture_end(self) -> None: ...
    def replay(self) -> None: ...
    def reset(self) -> None: ...
    def pool(self) -> tuple[int, int]: ...
    def tasks(self) -> Tasks: ...


class ExternalEvent(Protocol):
    """An event that synchronizes a graph with work outside the graph. A stream is specified as a device and a stream
    number."""

    def record(self, device: int, stream: int) -> None: ...
    def wait(self, device: int, stream: int) -> None: ...
    def reset(self, device: int, stream: int) -> None: ...


class Extension(Protocol):
    """The functions of the compiled module. A device is specified as its index among the NPUs that this process
    sees."""

    __file__: str

    HcclBackend: Callable[[int, int, Backend, timedelta], Backend]
    """Creates the backend of a process group. The arguments are a rank, a size, the gloo backend that transfers the
    data, and the timeout after which the watchdog ends the process."""

    AloneBackend: Callable[[int, int], Backend]
    """Creates the backend of a group that has no other real rank. The arguments are a rank and a size."""

    Graph: Callable[[], Graph]
    TaskGroup: type[Group]
    ExternalEvent: Callable[[], ExternalEvent]

    def new_graph_pool(self) -> tuple[int, int]: ...
    def is_recording(self, device: int) -> bool:
        """Return whether this thread's work on the NPU's current stream is recorded in a graph."""

    def is_capturing(self, device: int) -> bool:
        """Return whether the current stream of the NPU takes part in a capture."""

    def begin_task_group(self, device: int, stream: int) -> None: ...
    def end_task_group(self, device: int, stream: int) -> Group: ...
    def begin_task_update(self, device: int, stream: int, group: Group) -> None: ...
    def end_task_update(self, device: int, stream: int) -> None: ...
    def place_in_graph(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of the tensor in the memory pool of the graph that is being captured."""

    def inside_operator(self, function: Callable[[], object]) -> object:
        """Call a function without recording its operations in a graph."""

    def add_to_graph(
        self,
        name: str,
        tensors: list[torch.Tensor],
        names: list[str],
        again: Callable[[list[torch.Tensor]], None],
    ) -> None:
        """Record a call in the graph. Each replay calls `again` with tensors at the addresses of `tensors`."""

    def weak_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor that shares the memory of `tensor` but does not keep the memory alive."""

    def set_graph_reporter(self, report: Callable[[str], None], strict: bool) -> None:
        """Set the function that is called when a replay uses freed memory. `strict` specifies whether such a replay is
        an error."""

    def configure(self, installed: int) -> None:
        """Set the number of virtual NPUs on this machine. Call this function once, before anything else."""

    def init(self) -> None:
        """Finalize the set of visible NPUs. Raise RuntimeError if this process was forked after its parent called this
        function."""

    def is_initialized(self) -> bool: ...
    def is_in_bad_fork(self) -> bool: ...
    def device_count(self) -> int: ...
    def visible_devices(self) -> list[int]:
        """Return the physical numbers of the NPUs that are visible to this process."""

    def current_device(self) -> int: ...
    def set_device(self, device: int) -> None: ...
    def check_index(self, device: int) -> None:
        """Raise RuntimeError if there is no such NPU."""

    def current_stream_id(self, device: int) -> int: ...
    def set_stream_id(self, device: int, stream: int) -> None: ...
    def new_stream_id(self, device: int) -> int: ...
    def refuse_streams_of_torch(self, refused: bool) -> None:
        """Refuse or allow the creation of a `torch.Stream` on an NPU."""

    def set_delayed_copies(self, delayed: bool) -> None: ...
    def synchronize_device(self, device: int) -> None: ...

    def die_at_collective(self, collective: int, rank: int) -> None: ...
    def slow_collectives(self, seconds: float, rank: int) -> None: ...
    def limit_bandwidth(self, gigabytes_per_second: float, rank: int) -> None: ...
    def fail_allocation(self, allocation: int, rank: int) -> None: ...
    def fail_allocations_above(self, size: int, rank: int) -> None: ...
    def set_rank(self, rank: int) -> None: ...
    def rank(self) -> int: ...

    def set_total_memory(self, size: int) -> None: ...
    def total_memory(self) -> int: ...
    def memory_stats(self, device: int) -> dict[str, int]: ...

    def set_phantom(self, least: int) -> None:
        """Turn every new tensor of at least `least` bytes into a phantom, which has a shape but no values. The value 0
        disables phantoms."""

    def phantom(self) -> int:
        """Return the minimum size in bytes of a phantom tensor, or 0 if phantoms are disabled."""

    def is_phantom(self, tensor: torch.Tensor) -> bool: ...
    def is_phantom_address(self, data: int) -> bool: ...

    def start_ledger(self, flops: float, bytes: float, site: Callable[[], int] | None = None) -> None:
        """Start the ledger. `flops` and `bytes` are an NPU's peak operations per second and bytes per second."""

    def ledger_clock(self) -> int:
        """Return the number of allocations and frees so far. The ledger uses this number as its clock."""

    def ledger_blocks(self) -> list[tuple[int, int, int, int, int]]:
        """Return, for each block, its size in bytes, its allocation time, its release time (0 if it is not released),
        and its holder. Holders are numbers that csrc/ledger.h defines."""

    def take_ledger(self) -> tuple[list[tuple[str, int, float, float, float]], list[tuple[str, int, int, float]]]:
        """Return the work since the last call of this function, in two lists. Each item of the first list describes an
        operator: its name, number of calls, FLOPs, bytes, and minimum time in seconds. Each item of the second list
        describes a kind of message: its name, group size, number of calls, and bytes."""

    def groups_in_ledger(self) -> int:
        """Return the number of process groups that have communicated and that include other ranks."""

    def mark_in_ledger(self, data: int, holder: int) -> None:
        """Record the holder (csrc/ledger.h) of the memory block at the address `data`."""

    def work_in_ledger(self, name: str, flops: float, bytes: float) -> None:
        """Add the cost of one call of an operator."""

    def begin_pool(self, malloc: int, free: int) -> None:
        """Make this thread allocate memory with another allocator. `malloc` and `free` are the addresses of the
        allocator's functions."""

    def end_pool(self) -> None: ...
    def set_pool_callbacks(self, malloc: Callable[[Handle], None], free: Callable[[int], Handle]) -> None:
        """Set the functions that the library's exported `my_malloc` and `my_free` call."""

    def map_memory(self, data: int) -> None:
        """Map memory at a reserved address, and fill the memory with a poison pattern. Raise RuntimeError if the
        address is not reserved, or if memory is already mapped there."""

    def unmap_memory(self, data: int) -> None:
        """Release the memory at an address. Raise RuntimeError if no memory is mapped at this address."""

    def check_mapped(self, data: int) -> None:
        """Raise RuntimeError if an address is in the reserved range of a pool but has no mapped memory."""

    def reset_peak(self, device: int) -> None: ...
    def reset_accumulated(self, device: int) -> None: ...
    def set_memory_fraction(self, device: int, fraction: float) -> None: ...
    def empty_cache(self) -> None: ...

    def default_generator(self, device: int) -> torch.Generator: ...
    def cpu_alias(self, tensor: torch.Tensor) -> torch.Tensor: ...
    def npu_alias(self, tensor: torch.Tensor, device: int) -> torch.Tensor: ...
    def is_fractal(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor has the FRACTAL_NZ layout."""

    def to_fractal(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of the tensor in the FRACTAL_NZ layout."""

    def move_storage(self, npu: torch.Tensor, cpu: torch.Tensor) -> None: ...


_held: Extension | None = None


def hold(compiled: Extension | None) -> None:
    """Set the compiled device of this process. None means that the device could not be loaded."""
    global _held
    _held = compiled


def is_loaded() -> bool:
    """Return whether this process has loaded the device."""
    return _held is not None


def extension() -> Extension:
    """Return the compiled device of this process.

    Raises:
        TorchError: virtual-ascend is not loaded.
    """
    if _held is None:
        raise TorchError(
            subject="virtual-ascend",
            found="virtual NPUs are not loaded in this process",
            fix=f"set {variables.NPUS.name}=2 before `import torch`",
        )
    return _held
