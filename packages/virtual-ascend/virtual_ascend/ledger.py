"""The ledger of what a program costs the virtual NPUs of its process. It is public, so that planners can build on it.

It has each block of memory with its lifetime and holder, the work of each operator, and each message. A process can be
the only rank of groups that have their true size (`be_alone`), and its tensors can be phantoms
(`VIRTUAL_ASCEND_PHANTOM`). So a laptop can estimate one rank of a large job.
"""

from __future__ import annotations

from typing import NamedTuple

from .device.extension import extension, is_loaded
from .hccl.backend import be_alone

__all__ = [
    "Block",
    "Message",
    "Work",
    "add_work",
    "be_alone",
    "blocks",
    "clock",
    "groups",
    "mark",
    "phantom_bytes",
    "start",
    "take",
]


class Block(NamedTuple):
    """A block of memory. Its times are readings of the ledger's clock."""

    size: int
    """In bytes."""
    allocated: int
    freed: int
    """0 if it has not been freed."""
    holder: int
    """The holder that `mark` was told, or the one that the ledger found by itself (csrc/ledger.h)."""


class Work(NamedTuple):
    """The calls of one operator."""

    name: str
    calls: int
    flops: float
    bytes: float
    seconds: float
    """The least time, from the flops and bytes a second that `start` was given."""


class Message(NamedTuple):
    """The messages of one kind in groups of one size."""

    name: str
    group_size: int
    calls: int
    bytes: float


def start(flops: float, bytes: float) -> None:
    """Start the ledger. `flops` and `bytes` are what an NPU can do in a second.

    If tensors can be phantoms, large host tensors are phantoms from now on, and the ledger has them, too.
    """
    extension().start_ledger(flops, bytes)


def clock() -> int:
    """Return how many allocations and frees there have been."""
    return extension().ledger_clock()


def blocks() -> list[Block]:
    """Return every block since the start."""
    return [Block(*block) for block in extension().ledger_blocks()]


def mark(data: int, holder: int) -> None:
    """Set the holder of the block at an address."""
    extension().mark_in_ledger(data, holder)


def add_work(name: str, flops: float, bytes: float) -> None:
    """Add the cost of one call of an operator that the ledger cannot see into."""
    extension().work_in_ledger(name, flops, bytes)


def take() -> tuple[list[Work], list[Message]]:
    """Return the work and the messages since the last call of this function."""
    work, messages = extension().take_ledger()
    return [Work(*each) for each in work], [Message(*each) for each in messages]


def groups() -> int:
    """Return how many process groups with other ranks have communicated."""
    return extension().groups_in_ledger()


def phantom_bytes() -> int:
    """Return the size in bytes from which a tensor is a phantom, which is counted but not computed; 0 if none is."""
    return extension().phantom() if is_loaded() else 0
