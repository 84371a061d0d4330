"""The meeting point of a group: a store that the process of rank 0 serves."""

from __future__ import annotations

import functools
import secrets
import socket
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from .... import environment
from ....errors import GroupError
from .store import Secret, SignedStore, first_line

if TYPE_CHECKING:
    from torch.distributed import TCPStore

__all__ = ["Meeting", "enter", "open_meeting", "serve"]


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the ranks of a group meet: the address of the store, which the process of rank 0 serves, and a secret.

    Whoever is given it is believed to be a rank, so it goes to the ranks and nowhere else: over Ray, as they
    themselves do.
    """

    host: str
    port: int
    secret: Secret

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


# Stores that this process serves, until the group that meets there takes them over.
_served: dict[Meeting, TCPStore] = {}


def open_meeting(host: str, port: int, timeout: float) -> Meeting:
    """Serve a store in this process, which will be rank 0, at this address and no other; port 0 is any free one.

    `host` is an address of this machine that the other ranks reach: IPv4, or IPv6 with or without brackets. Raises
    GroupError if the port is taken, or if this machine has no such address.
    """
    asked = Meeting(host.strip("[]"), port, Secret(secrets.token_bytes(32)))
    try:
        store = serve(asked.host, port, timeout)
    except (OSError, RuntimeError) as error:
        raise GroupError(
            subject="weight sync",
            expected="a free port for the store of the group, at an address of this machine",
            found=f"that {asked} cannot be served: {first_line(error)}",
            fix=f"use another port, or unset {environment.WEIGHT_SYNC_PORT.name} to get a free one; the address is "
            "what Ray was given for this machine (`ray start --node-ip-address`)",
        ) from error
    meeting = replace(asked, port=store.port)
    _served[meeting] = store
    return meeting


def serve(host: str, port: int, timeout: float) -> TCPStore:
    """Serve a store in this process at this address and no other; left to itself it listens on all interfaces.

    Raises OSError or RuntimeError if the port is taken, or if this machine has no such address.
    """
    from torch.distributed import TCPStore

    with closing(_listen(host, port)) as listening:
        made = functools.partial(
            TCPStore,
            host,
            listening.getsockname()[1],
            None,
            True,
            timedelta(seconds=timeout),
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )
        try:
            return made()
        except NotImplementedError:
            # torch 2.5's newer way of serving, its default, takes no socket that listens already; its older does.
            return made(use_libuv=False)


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(4096)
    except OSError:
        listening.close()
        raise
    return listening


def enter(meeting: Meeting, group: str, rank: int, timeout: float) -> SignedStore:
    """Return the store of a meeting, with all keys under a name that only the ranks of the group know.

    torch's own values, from which HCCL makes its connections, cannot be signed. A stranger does not know under which
    keys they are, unless its torch can list them; what it then puts in their place shows in `communicator.prove`.

    Rank 0 gets the store that this process serves, and other ranks get a connection. Raises GroupError if there is no
    store at that address.
    """
    from torch.distributed import PrefixStore, TCPStore

    prefix = f"{group}/{meeting.secret.derived('keys').hex()}"
    if rank == 0:
        if meeting not in _served:
            raise GroupError(
                subject=f"weight sync group {group!r}",
                expected=f"rank 0 to join in the process that opened {meeting}",
                found="a process that serves no such store",
                fix="call open_meeting and join in one process",
            )
        return SignedStore(PrefixStore(prefix, _served.pop(meeting)), meeting.secret)
    try:
        store = TCPStore(meeting.host, meeting.port, None, False, timedelta(seconds=timeout))
    except RuntimeError as error:
        raise GroupError(
            subject=f"weight sync group {group!r}",
            expected=f"the store of rank 0 at {meeting}",
            found=f"that rank {rank} cannot reach it: {first_line(error)}",
            fix="rank 0 has ended or given up, or this rank came late: see the error of rank 0",
        ) from error
    return SignedStore(PrefixStore(prefix, store), meeting.secret)
