"""The meeting point of a group: a store that the process of rank 0 serves."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from .... import environment
from ....errors import GroupError
from .store import Store, first_line

if TYPE_CHECKING:
    from torch.distributed import TCPStore

__all__ = ["Meeting", "enter", "open_meeting"]


@dataclass(frozen=True, slots=True)
class Meeting:
    """The address of the store at which the ranks of a group meet; the process of rank 0 serves it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


# Stores that this process serves, until the group that meets there takes them over.
_served: dict[Meeting, TCPStore] = {}


def open_meeting(host: str, port: int, timeout: float) -> Meeting:
    """Serve a store in this process, which will be rank 0. The store binds the port itself; 0 is any free port.

    `host` is an address of this machine that the other ranks reach: IPv4, or IPv6 with or without brackets. Raises
    GroupError if the port is taken.
    """
    from torch.distributed import TCPStore

    host = host.strip("[]")
    try:
        store = TCPStore(host, port, None, True, timedelta(seconds=timeout), wait_for_workers=False)
    except RuntimeError as error:
        raise GroupError(
            subject="weight sync",
            expected="a free port for the store of the group",
            found=f"that {Meeting(host, port)} cannot be served: {first_line(error)}",
            fix=f"use another port, or unset {environment.WEIGHT_SYNC_PORT.name} to get a free one",
        ) from error
    meeting = Meeting(host, store.port)
    _served[meeting] = store
    return meeting


def enter(meeting: Meeting, group: str, rank: int, timeout: float) -> Store:
    """Return the store of a meeting, with all keys under the group's name.

    Rank 0 gets the store that this process serves, and other ranks get a connection. Raises GroupError if there is no
    store at that address.
    """
    from torch.distributed import PrefixStore, TCPStore

    if rank == 0:
        if meeting not in _served:
            raise GroupError(
                subject=f"weight sync group {group!r}",
                expected=f"rank 0 to join in the process that opened {meeting}",
                found="a process that serves no such store",
                fix="call open_meeting and join in one process",
            )
        store: Store = PrefixStore(group, _served.pop(meeting))
        return store
    try:
        store = PrefixStore(group, TCPStore(meeting.host, meeting.port, None, False, timedelta(seconds=timeout)))
    except RuntimeError as error:
        raise GroupError(
            subject=f"weight sync group {group!r}",
            expected=f"the store of rank 0 at {meeting}",
            found=f"that rank {rank} cannot reach it: {first_line(error)}",
            fix="rank 0 has ended or given up, or this rank came late: see the error of rank 0",
        ) from error
    return store
