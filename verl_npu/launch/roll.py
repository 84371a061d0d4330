"""The roll call: which nodes are there, which are missing, and which were lost, as they and Ray say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import LaunchError
from ..ports import listens
from .board import Board, Member, RayNode
from .interface import resolve
from .party import Party

__all__ = ["Lost", "Roll", "call", "missing", "silent"]


@dataclass(frozen=True, slots=True)
class Lost:
    """A node that was there, and is not any more."""

    name: str
    address: str
    reason: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Roll:
    """Who answered."""

    present: Mapping[str, Member]
    """By name, those that Ray has."""
    absent: Mapping[str, Member]
    """By name, those that have said something and that Ray does not have: they are coming, refused, or gone."""
    dead: frozenset[str]
    """The names of the nodes that Ray had, and has not any more."""
    npus: int

    def lost(self, names: Sequence[str]) -> list[Lost]:
        """Return those of `names` that are not present."""
        return [self._lost(name) for name in names if name not in self.present]

    def gone(self) -> list[Lost]:
        """Return all that are known to have been there, or to have tried, and will not come by themselves."""
        return [
            self._lost(name) for name, member in self.absent.items() if member.state != "joined" or name in self.dead
        ]

    def _lost(self, name: str) -> Lost:
        member = self.absent.get(name)
        if member is None:
            return Lost(name, "", "it does not answer", ())
        said = member.reason if member.state != "joined" else "it does not answer, and said nothing before"
        return Lost(name, member.address, said, member.lines)


def call(board: Board) -> Roll:
    """Ask who is there. Raises NoAnswer."""
    members, nodes = board.members(), board.nodes()
    alive: dict[str, RayNode] = {node.name: node for node in nodes if node.alive}
    present = {name: member for name, member in members.items() if name in alive and member.state == "joined"}
    return Roll(
        present,
        {name: member for name, member in members.items() if name not in present},
        frozenset(node.name for node in nodes if not node.alive and node.name not in alive),
        int(sum(node.resources.get("NPU", 0) for name, node in alive.items() if name in present)),
    )


def silent(board: Board, names: Sequence[str]) -> list[Lost]:
    """Return those of `names` that Ray still takes for alive, and where its process does not answer. Raises NoAnswer.

    A job notices at once that a node is gone; Ray's health checks take a while.
    """
    return [
        Lost(node.name, node.address, "its Ray does not answer", ())
        for node in board.nodes()
        if node.alive and node.name in names and not listens(node.address, node.port)
    ]


def missing(party: Party, present: Mapping[str, Member]) -> list[str]:
    """Return the hosts that have not come, by the names of the list; empty if no list is known."""
    there = {member.address for member in present.values()} | {name.partition(".")[0] for name in present}
    return [host for host in party.hosts if host.partition(".")[0] not in there and _address(host) not in there]


def _address(host: str) -> str:
    try:
        return resolve(host)
    except LaunchError:
        return host
