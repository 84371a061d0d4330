"""The ledger records the memory, work, and messages that a program would cost its NPUs. It is public, so that planners
can build on it.

It records each block of memory with its lifetime and holder, the work of each operator, and each message. A process
can be the only real rank in groups of full size (`be_alone`), and its tensors can be phantoms
(`VIRTUAL_ASCEND_PHANTOM`). A laptop can therefore estimate one rank of a large job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .device.extension import extension, is_loaded
from .hccl.backend import be_alone as be_alone


class Block(NamedTuple):
    """A block of memory. Times are readings of the ledger's clock."""

    size: int
    """The size in bytes."""
    allocated: int
    freed: int
    """The time at which the block was freed. It is 0 if the block has not been freed."""
    holder: int
    """The holder that was set with `mark`, or otherwise the one that the ledger determined itself (csrc/ledger.h)."""
    site: int
    """The number that the site function returned when the block was allocated; 0 without a site function."""


class Work(NamedTuple):
    """The number of calls and the total cost of one operator."""

    name: str
    calls: int
    flops: float
    bytes: float
    seconds: float
    """The minimum time in seconds, at the peak speeds that were passed to `start`."""


class Message(NamedTuple):
    """The number and the total size of the messages of one kind, over all process groups of the same size."""

    name: str
    group_size: int
    calls: int
    bytes: float


def start(flops: float, bytes: float, site: Callable[[], int] | None = None) -> None:
    """Start the ledger. `flops` and `bytes` are an NPU's peak operations per second and bytes per second. `site` is
    called at each allocation, in the thread that allocates, and returns a number for the place in the program.

    If phantom tensors are enabled, large host tensors also become phantoms after this call, and the ledger counts
    them.
    """
    extension().start_ledger(flops, bytes, site)


def clock() -> int:
    """Return the number of allocations and frees so far. The ledger uses this number as its clock."""
    return extension().ledger_clock()


def blocks() -> list[Block]:
    """Return every block that was allocated after `start` was called."""
    return [Block(*block) for block in extension().ledger_blocks()]


def mark(data: int, holder: int) -> None:
    """Record the holder (csrc/ledger.h) of the memory block at the address `data`."""
    extension().mark_in_ledger(data, holder)


def add_work(name: str, flops: float, bytes: float) -> None:
    """Add the cost of one call of an operator whose cost the ledger cannot determine itself."""
    extension().work_in_ledger(name, flops, bytes)


def take() -> tuple[list[Work], list[Message]]:
    """Return the work and the messages that were recorded after the last call of `take`."""
    work, messages = extension().take_ledger()
    return [Work(*each) for each in work], [Message(*each) for each in messages]


def groups() -> int:
    """Return the number of process groups that have several ranks and have communicated."""
    return extension().groups_in_ledger()


def phantom_bytes() -> int:
    """Return the minimum size in bytes of a phantom tensor, or 0 if phantoms are disabled. The ledger counts the
    memory and work of phantom tensors, but they have no values."""
    return extension().phantom() if is_loaded() else 0
