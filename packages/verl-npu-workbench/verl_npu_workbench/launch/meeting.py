"""The rendezvous of a launch's hosts: they exchange JSON messages over TCP before Ray starts and when the job ends.

Each host introduces itself, or reports why it cannot take part. The head tells all hosts to start Ray and, at the end,
sends them the job's exit status.
"""

from __future__ import annotations

import json
import select
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

_PATIENCE = 10.0
_MOST_BYTES = 1 << 20
_SILENT = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))
"""TCP keep-alive settings that make a connection to a host without power or network fail after half a minute."""


@dataclass(frozen=True, slots=True)
class Member:
    """A host, as it described itself when it connected to the head."""

    name: str
    address: str
    npus: int
    plan: str
    """The job and the number of nodes that the user of that host asked for."""
    ready: bool = False
    """True once Ray has started on that host."""
    trouble: str = ""
    """The reason why the host cannot take part, or why it dropped out."""

    def __str__(self) -> str:
        return f"{self.name} ({self.address}, {self.npus} NPU{'' if self.npus == 1 else 's'})"


class Connection:
    """A connection for messages between two hosts. If one host closes the connection, the other host gets an error
    when it reads."""

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(_PATIENCE)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _SILENT:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
        self._socket, self._text = connected, b""

    def say(self, **message: object) -> None:
        """Send a message. The message is lost if the other side has closed the connection."""
        with suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def hear(self) -> dict[str, Any]:
        """Return the next message, or an empty dict if none has arrived yet. Raises OSError or ValueError if no more
        messages can arrive."""
        while b"\n" not in self._text and select.select([self._socket], [], [], 0)[0]:
            news = self._socket.recv(1 << 16)
            self._text += news
            if not news or len(self._text) > _MOST_BYTES:
                raise OSError("the connection has ended")
        if b"\n" not in self._text:
            return {}
        line, _, self._text = self._text.partition(b"\n")
        return dict(json.loads(line))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class Meeting:
    """The head's side of the rendezvous. Raises OSError if the port is in use."""

    def __init__(self, port: int, own: Member, nodes: int) -> None:
        self._listening = socket.create_server(("", port), backlog=1024)
        self._own, self._nodes = own, nodes
        self._connections: dict[Connection, Member | None] = {}

    @property
    def members(self) -> list[Member]:
        """The hosts that have joined, the head first."""
        return [self._own, *filter(None, self._connections.values())]

    def look(self) -> list[Member]:
        """Read new messages from the hosts. Return the hosts that cannot take part or have dropped out."""
        while self._listening.fileno() >= 0 and select.select([self._listening], [], [], 0)[0]:
            self._connections[Connection(self._listening.accept()[0])] = None
        lost = []
        for connection, known in [*self._connections.items()]:
            member, ended = known, False
            try:
                if (known or len(self.members) < self._nodes) and (message := connection.hear()):
                    member = replace(known, **message) if known else self._judged(Member(**message))
            except (OSError, TypeError, ValueError, RecursionError) as error:
                member, ended = known and replace(known, trouble=str(error)), True
            self._connections[connection] = member
            if member and member.trouble:
                connection.say(status=2, reason=member.trouble)
                lost.append(member)
            if ended or (member and member.trouble):
                del self._connections[connection]
                connection.close()
        return lost

    def _judged(self, member: Member) -> Member:
        if self._own.trouble:
            return replace(member, trouble=f"the head {self._own} cannot take part: {self._own.trouble}")
        if member.plan != self._own.plan:
            return replace(member, trouble=f"its job is {member.plan}, but the head's is {self._own.plan}")
        if member.address in [each.address for each in self.members]:
            return replace(member, trouble="this machine already takes part: start one process on each machine")
        return member

    def start(self) -> None:
        """Tell all hosts to start Ray. No host can join after this."""
        self._listening.close()
        for connection, member in self._connections.items():
            if member:
                connection.say(start=True)
            else:
                connection.say(status=2, reason="all nodes are already there")

    def end(self, status: int, reason: str) -> None:
        """Tell all hosts how the launch ended, with the exit status."""
        self._listening.close()
        for connection in self._connections:
            connection.say(status=status, reason=reason)
            connection.close()


def join(address: str, port: int, own: Member, patience: float) -> Connection | None:
    """Connect to the head as soon as it accepts connections, and introduce this host. Return the connection, or None
    if the head accepts no connection within `patience` seconds."""
    ends = time.monotonic() + patience
    while time.monotonic() < ends:
        with suppress(OSError):
            connection = Connection(socket.create_connection((address, port), _PATIENCE))
            connection.say(**asdict(own))
            return connection
        time.sleep(0.5)
    return None
