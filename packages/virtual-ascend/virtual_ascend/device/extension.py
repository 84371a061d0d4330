"""The compiled device of this process, and what it offers Python (csrc/module.cpp)."""

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
"""An allocation of vllm-ascend's: device, size in bytes, address, and a number that is not used here."""


Tasks: TypeAlias = "list[tuple[str, list[tuple[str, int, list[int], list[int], str]]]]"
"""Of each task of a graph its operator, and of that one's tensors the names, addresses, shapes, strides and dtypes."""


class Group(Protocol):
    """Tasks of a graph whose arguments can be changed."""


class Graph(Protocol):
    """What was captured (csrc/graph_replay.h)."""

    def capture_begin(self, pool: tuple[int, int], error_mode: str) -> None: ...
    def capture_end(self) -> None: ...
    def replay(self) -> None: ...
    def reset(self) -> None: ...
    def pool(self) -> tuple[int, int]: ...
    def tasks(self) -> Tasks: ...


class ExternalEvent(Protocol):
    """An event between a graph and what is outside of it. A stream is a device and a number."""

    def record(self, device: int, stream: int) -> None: ...
    def wait(self, device: int, stream: int) -> None: ...
    def reset(self, device: int, stream: int) -> None: ...


class Extension(Protocol):
    """The functions of the compiled module. A device is its number among those that this process sees."""

    __file__: str

    HcclBackend: Callable[[int, int, Backend, timedelta], Backend]
    """Makes a process group's backend of a rank, a size, the gloo backend that moves the data, and the timeout after
    which the watchdog ends the process."""

    AloneBackend: Callable[[int, int], Backend]
    """Makes a backend of a rank and a size, of which no other rank exists."""

    Graph: Callable[[], Graph]
    TaskGroup: type[Group]
    ExternalEvent: Callable[[], ExternalEvent]

    def new_graph_pool(self) -> tuple[int, int]: ...
    def is_recording(self, device: int) -> bool:
        """Whether what this thread does on an NPU's current stream is written down in a graph."""

    def is_capturing(self, device: int) -> bool:
        """Whether the current stream of an NPU belongs to a capture."""

    def begin_task_group(self, device: int, stream: int) -> None: ...
    def end_task_group(self, device: int, stream: int) -> Group: ...
    def begin_task_update(self, device: int, stream: int, group: Group) -> None: ...
    def end_task_update(self, device: int, stream: int) -> None: ...
    def place_in_graph(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor with these values in the pool of the graph that is captured."""

    def inside_operator(self, function: Callable[[], object]) -> object:
        """Call a function, of which nothing is written down."""

    def add_to_graph(
        self,
        name: str,
        tensors: list[torch.Tensor],
        names: list[str],
        again: Callable[[list[torch.Tensor]], None],
    ) -> None:
        """Write a call down: each replay calls `again` with the tensors at these addresses."""

    def weak_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor over the same memory that does not keep it."""

    def set_graph_reporter(self, report: Callable[[str], None], strict: bool) -> None:
        """Say who is told of a replay with an address whose memory is gone, and whether that is an error."""

    def configure(self, installed: int) -> None:
        """Set how many NPUs the machine has. Called once, before anything else."""

    def init(self) -> None:
        """Freeze the visible NPUs. Raises RuntimeError in a process forked after its parent did this."""

    def is_initialized(self) -> bool: ...
    def is_in_bad_fork(self) -> bool: ...
    def device_count(self) -> int: ...
    def visible_devices(self) -> list[int]:
        """The physical numbers of the NPUs that this process sees."""

    def current_device(self) -> int: ...
    def set_device(self, device: int) -> None: ...
    def check_index(self, device: int) -> None:
        """Raise RuntimeError if there is no such NPU."""

    def current_stream_id(self, device: int) -> int: ...
    def set_stream_id(self, device: int, stream: int) -> None: ...
    def new_stream_id(self, device: int) -> int: ...
    def refuse_streams_of_torch(self, refused: bool) -> None:
        """Whether `torch.Stream` makes no stream of an NPU."""

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
        """Make phantoms of all tensors of so many bytes and more; 0 is of none."""

    def phantom(self) -> int:
        """The bytes from which on a tensor is a phantom; 0 if none is."""

    def is_phantom(self, tensor: torch.Tensor) -> bool: ...
    def is_phantom_address(self, data: int) -> bool: ...

    def start_ledger(self, flops: float, bytes: float) -> None:
        """Keep from now on what is allocated and done; `flops` and `bytes` a second are an NPU's."""

    def ledger_clock(self) -> int:
        """How many allocations and frees there have been."""

    def ledger_blocks(self) -> list[tuple[int, int, int, int]]:
        """Of each block its bytes, when it was allocated and freed (0: not), and its holder (csrc/ledger.h)."""

    def take_ledger(self) -> tuple[list[tuple[str, int, float, float, float]], list[tuple[str, int, int, float]]]:
        """What was done since the last call: operators with calls, flops, bytes and seconds at best, and messages with
        the size of their group, calls and bytes."""

    def groups_in_ledger(self) -> int:
        """How many process groups with other ranks have communicated."""

    def mark_in_ledger(self, data: int, holder: int) -> None:
        """Say who holds the block at an address."""

    def work_in_ledger(self, name: str, flops: float, bytes: float) -> None:
        """Add what one call of an operator costs."""

    def begin_pool(self, malloc: int, free: int) -> None:
        """Have this thread's memory come from an allocator, by the addresses of its functions."""

    def end_pool(self) -> None: ...
    def set_pool_callbacks(self, malloc: Callable[[Handle], None], free: Callable[[int], Handle]) -> None:
        """Say who is told of each allocation of `my_malloc` and `my_free`, which the library exports."""

    def map_memory(self, data: int) -> None:
        """Put poisoned memory behind an address that has none. Raises RuntimeError if it has, or is nobody's."""

    def unmap_memory(self, data: int) -> None:
        """Give an address's memory back. Raises RuntimeError if it has none."""

    def check_mapped(self, data: int) -> None:
        """Raise RuntimeError if an address is one of a pool's that has no memory."""

    def reset_peak(self, device: int) -> None: ...
    def reset_accumulated(self, device: int) -> None: ...
    def set_memory_fraction(self, device: int, fraction: float) -> None: ...
    def empty_cache(self) -> None: ...

    def default_generator(self, device: int) -> torch.Generator: ...
    def cpu_alias(self, tensor: torch.Tensor) -> torch.Tensor: ...
    def npu_alias(self, tensor: torch.Tensor, device: int) -> torch.Tensor: ...
    def is_fractal(self, tensor: torch.Tensor) -> bool:
        """Whether it lies in memory that is in FRACTAL_NZ."""

    def to_fractal(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor with these values, in FRACTAL_NZ."""

    def move_storage(self, npu: torch.Tensor, cpu: torch.Tensor) -> None: ...


_held: Extension | None = None


def hold(compiled: Extension | None) -> None:
    """Make `compiled` the device of this process; None if it could not be brought up."""
    global _held
    _held = compiled


def is_loaded() -> bool:
    """Whether this process has the device."""
    return _held is not None


def extension() -> Extension:
    """The compiled device of this process.

    Raises:
        TorchError: the virtual Ascend is not loaded.
    """
    if _held is None:
        raise TorchError(
            subject="the virtual Ascend",
            expected="it to be loaded in this process",
            found="that it is not",
            fix=f"set {variables.NPUS.name}=2 before `import torch`",
        )
    return _held
