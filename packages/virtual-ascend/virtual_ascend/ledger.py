"""What a program costs the virtual NPUs of its process: each block of memory with its lifetime and holder, each
operator's work, each message. Public: planners build on it.

A process can also be the only rank of groups that have their true size (`be_alone`), and its tensors can be phantoms
(`VIRTUAL_ASCEND_PHANTOM`), so that one rank of a large job is reckoned on a laptop.
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
    """A block of memory; times are on the ledger's clock."""

    size: int
    """In bytes."""
    allocated: int
    freed: int
    """0 if it has not been freed."""
    holder: int
    """Who was said to hold it (`mark`), or what the ledger knows by itself (csrc/ledger.h)."""


class Work(NamedTuple):
    """The calls of one operator."""

    name: str
    calls: int
    flops: float
    bytes: float
    seconds: float
    """At best, by the flops and bytes a second that `start` was given."""


class Message(NamedTuple):
    """The messages of one kind in groups of one size."""

    name: str
    group_size: int
    calls: int
    bytes: float


def start(flops: float, bytes: float) -> None:
    """Keep the ledger from now on; `flops` and `bytes` are what an NPU does in a second."""
    extension().start_ledger(flops, bytes)


def clock() -> int:
    """How many allocations and frees there have been."""
    return extension().ledger_clock()


def blocks() -> list[Block]:
    """Every block since the start."""
    return [Block(*block) for block in extension().ledger_blocks()]


def mark(data: int, holder: int) -> None:
    """Say who holds the block at an address."""
    extension().mark_in_ledger(data, holder)


def add_work(name: str, flops: float, bytes: float) -> None:
    """Add what one call of an operator costs that the ledger cannot see into."""
    extension().work_in_ledger(name, flops, bytes)


def take() -> tuple[list[Work], list[Message]]:
    """What was done since the last call."""
    work, messages = extension().take_ledger()
    return [Work(*each) for each in work], [Message(*each) for each in messages]


def groups() -> int:
    """How many process groups with other ranks have communicated."""
    return extension().groups_in_ledger()


def phantom_bytes() -> int:
    """The size in bytes from which on a tensor is a phantom: counted, and never computed; 0 if none is."""
    return extension().phantom() if is_loaded() else 0
