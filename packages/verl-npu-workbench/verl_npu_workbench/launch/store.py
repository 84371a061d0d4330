"""What the nodes of a launch tell each other, in the key-value store of Ray's control service (GCS) on the head.

Ray promises no stable interface for it; `GcsClient` has been the same from 2.41 to 2.55. A head that does not answer
is an error of its own, and never ends this process, as Ray's clients do after a minute. From what the nodes and Ray
say follows which of them are there, which are missing, and which were lost.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from verl_npu import progress
from verl_npu.errors import LaunchError
from verl_npu.language import gettext as _

from ..processes import answers
from .cluster import Cluster
from .network import resolve

_SPACE = b"verl_npu_launch"
_ANNOUNCEMENT, _END, _MEMBER = b"announcement", b"end", b"member/"
_PATIENCE = 3.0
"""Seconds for one answer."""
_AGAIN = 0.5
_GIVEN = ("NPU", "CPU")
_ALIVE = 0  # GcsNodeInfo.GcsNodeState
_ENDLESS = str(1 << 22)


class NoAnswer(Exception):
    """The head did not answer."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """Which launch this is, as the head says it."""

    command: tuple[str, ...]
    needed: int
    most: int


@dataclass(frozen=True, slots=True)
class Member:
    """A node as it says of itself; Ray calls its node by the same name."""

    name: str
    address: str
    npus: int
    state: str = "joined"
    """`joined`, `refused` or `left`."""
    reason: str = ""
    """Why it was refused or has left."""
    lines: tuple[str, ...] = ()
    """The last ones that Ray printed there."""
    findings: tuple[Mapping[str, str], ...] = ()
    """The doctor's."""


@dataclass(frozen=True, slots=True)
class End:
    """How the launch ended; every node ends with the status."""

    status: int
    reason: str


@dataclass(frozen=True, slots=True)
class RayNode:
    """A node as Ray sees it."""

    name: str
    address: str
    alive: bool
    port: int
    """Where its raylet listens."""
    resources: Mapping[str, float] = field(default_factory=dict)


class Store:
    """The store at an address.

    A busy head may not answer for a while: it is asked again for `patience` seconds, with a call of `pause` in
    between, which may raise what ends the waiting.
    """

    def __init__(self, address: str, patience: float, pause: Callable[[float], None]) -> None:
        # Read when ray is imported: its clients otherwise end the process that they are in.
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", _ENDLESS)
        try:
            with progress.step(_("loading Ray's library")):
                raylet = importlib.import_module("ray._raylet")
                self._error: type[Exception] = importlib.import_module("ray.exceptions").RayError
        except ImportError as error:
            raise LaunchError(
                subject="verl-npu launch",
                expected=_("an installed ray"),
                found=f"{type(error).__name__}: {error}",
                fix="pip install 'ray[default]'",
            ) from error
        self.address = address
        self._patience = patience
        self._pause = pause
        self._connect = raylet.GcsClient
        self._client = None

    def announce(self, announcement: Announcement) -> None:
        """Say which launch this is. Raises NoAnswer."""
        self._put(_ANNOUNCEMENT, asdict(announcement))

    def announcement(self) -> Announcement | None:
        """Return which launch this is; None if the head has not said it yet. Raises NoAnswer."""
        content = self._get(_ANNOUNCEMENT)
        return None if content is None else Announcement(**{**content, "command": tuple(content["command"])})

    def tell(self, member: Member) -> None:
        """Say what is with a node. Raises NoAnswer."""
        self._put(_MEMBER + member.name.encode(), asdict(member))

    def members(self) -> dict[str, Member]:
        """Return what the nodes said last, by name. Raises NoAnswer."""
        found = {}
        for key in self._call("internal_kv_keys", _MEMBER, _SPACE):
            content = self._get(key)
            if content is not None:
                content |= {"lines": tuple(content["lines"]), "findings": tuple(content["findings"])}
                member = Member(**content)
                found[member.name] = member
        return found

    def close(self, end: End) -> None:
        """Say how the launch ended. Raises NoAnswer."""
        self._put(_END, asdict(end))

    def end(self) -> End | None:
        """Return how the launch ended; None while it goes on. Raises NoAnswer."""
        content = self._get(_END)
        return None if content is None else End(**content)

    def nodes(self) -> list[RayNode]:
        """Return Ray's nodes, those that are gone among them. Raises NoAnswer."""
        found = self._call("get_all_node_info")
        return [
            RayNode(
                str(info.node_name),
                str(info.node_manager_address),
                info.state == _ALIVE,
                int(info.node_manager_port),
                dict(info.resources_total),
            )
            for info in found.values()
        ]

    def busy(self) -> set[str]:
        """Return the names of the nodes on which something holds NPUs or CPUs. Raises NoAnswer."""
        names = {bytes(info.node_id): str(info.node_name) for info in self._call("get_all_node_info").values()}
        usage = self._call("get_all_resource_usage").resource_usage_data.batch
        return {
            names[bytes(node.node_id)]
            for node in usage
            if bytes(node.node_id) in names
            and any(node.resources_available.get(name, 0) < node.resources_total.get(name, 0) for name in _GIVEN)
        }

    def _put(self, key: bytes, content: object) -> None:
        self._call("internal_kv_put", key, json.dumps(content).encode(), True, _SPACE)

    def _get(self, key: bytes) -> dict[str, Any] | None:
        text = self._call("internal_kv_get", key, _SPACE)
        return None if text is None else dict(json.loads(text))

    def _call(self, name: str, *arguments: object) -> Any:
        ends = time.monotonic() + self._patience
        while True:
            try:
                if self._client is None:
                    self._client = self._connect(address=self.address)
                return getattr(self._client, name)(*arguments, timeout=_PATIENCE)
            except (self._error, OSError, RuntimeError) as error:
                if time.monotonic() > ends:
                    raise NoAnswer(str(error).partition("\n")[0]) from error
            self._pause(_AGAIN)


@dataclass(frozen=True, slots=True)
class Lost:
    """A node that was there, and is not any more."""

    name: str
    address: str
    reason: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Membership:
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


def read_membership(store: Store) -> Membership:
    """Ask who is there. Raises NoAnswer."""
    members, nodes = store.members(), store.nodes()
    alive: dict[str, RayNode] = {node.name: node for node in nodes if node.alive}
    present = {name: member for name, member in members.items() if name in alive and member.state == "joined"}
    return Membership(
        present,
        {name: member for name, member in members.items() if name not in present},
        frozenset(node.name for node in nodes if not node.alive and node.name not in alive),
        int(sum(node.resources.get("NPU", 0) for name, node in alive.items() if name in present)),
    )


def unresponsive(store: Store, names: Sequence[str]) -> list[Lost]:
    """Return those of `names` that Ray still takes for alive, and where its process does not answer. Raises NoAnswer.

    A job notices at once that a node is gone; Ray's health checks take a while.
    """
    return [
        Lost(node.name, node.address, "its Ray does not answer", ())
        for node in store.nodes()
        if node.alive and node.name in names and not answers(node.address, node.port)
    ]


def missing_hosts(cluster: Cluster, present: Mapping[str, Member]) -> list[str]:
    """Return the hosts that have not come, by the names of the list; empty if no list is known."""
    there = {member.address for member in present.values()} | {name.partition(".")[0] for name in present}
    return [host for host in cluster.hosts if host.partition(".")[0] not in there and _address(host) not in there]


def _address(host: str) -> str:
    try:
        return resolve(host)
    except LaunchError:
        return host
