"""Where the ranks of a group meet: a store that rank 0's process serves."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ..errors import GroupError, first_line

__all__ = ["Meeting", "enter", "open_meeting"]


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the ranks of a group meet: the address of the store that rank 0's process serves."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


# Stores that this process serves, until the group that meets there takes them over.
_served: dict[Meeting, Any] = {}


def open_meeting(host: str, port: int, timeout: float) -> Meeting:
    """Serve a store in this process, which will be rank 0; the store itself binds the port, and 0 is a free one.

    `host` is an address of this machine that the other ranks reach; IPv6 with or without brackets. Raises GroupError
    where the port is taken.
    """
    from torch.distributed import TCPStore

    host = host.strip("[]")
    try:
        store = TCPStore(host, port, None, True, timedelta(seconds=timeout), wait_for_workers=False)
    except RuntimeError as error:
        raise GroupError(
            f"weight sync: {Meeting(host, port)} cannot be served: {first_line(error)}. "
            "Use another port, or leave VERL_NPU_WEIGHT_SYNC_PORT out to get a free one"
        ) from error
    meeting = Meeting(host, store.port)
    _served[meeting] = store
    return meeting


def enter(meeting: Meeting, group: str, rank: int, timeout: float) -> Any:
    """Return the store of a meeting, under the group's name: what is served here for rank 0, a connection for others.

    Raises GroupError where there is none.
    """
    from torch.distributed import PrefixStore, TCPStore

    if rank == 0:
        if meeting not in _served:
            raise GroupError(f"weight sync group {group!r}: rank 0 must join where it opened {meeting}")
        return PrefixStore(group, _served.pop(meeting))
    try:
        return PrefixStore(group, TCPStore(meeting.host, meeting.port, None, False, timedelta(seconds=timeout)))
    except RuntimeError as error:
        raise GroupError(
            f"weight sync group {group!r}: rank {rank} found no store at {meeting}: rank 0 has ended or given up, or "
            f"this rank came late: {first_line(error)}"
        ) from error
