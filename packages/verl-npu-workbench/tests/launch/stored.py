"""A store without Ray, and the head of a launch that reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from verl_npu_workbench.launch.cluster import Cluster, Request
from verl_npu_workbench.launch.head import Head
from verl_npu_workbench.launch.store import Announcement, Member, RayNode, Store


@dataclass
class Stored:
    """A store with what the nodes and Ray said."""

    told: list[Member] = field(default_factory=list)
    there: list[RayNode] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    launch: Announcement | None = None
    address: str = "10.0.0.1:6766"

    def members(self) -> dict[str, Member]:
        return {member.name: member for member in self.told}

    def nodes(self) -> list[RayNode]:
        return self.there

    def busy(self) -> set[str]:
        return {node.name for node in self.there if node.alive} & self.used

    def announcement(self) -> Announcement | None:
        return self.launch

    def tell(self, member: Member) -> None:
        self.told.append(member)


def member(name: str, state: str = "joined", reason: str = "", lines: tuple[str, ...] = ()) -> Member:
    return Member(name, f"10.0.0.{name[1:]}", 8, state, reason, lines)


def node(name: str, alive: bool = True) -> RayNode:
    return RayNode(name, f"10.0.0.{name[1:]}", alive, 1, {"NPU": 8.0})


class Clock:
    """In place of the module time, and of the interruptions that pause: nobody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


def leader(
    store: Stored, said: list[str], needed: int, spare: int, temp: Path, clock: Clock, hosts: tuple[str, ...] = ()
) -> Head:
    """The head of a launch, whose Ray never ends."""
    request = Request(command=("train",), nodes=needed, spare=spare, head="n1", wait=2.0, grace=0.5, temp=temp)
    cluster = Cluster(needed, spare, "n1", is_head=True, hosts=hosts)
    prepared = SimpleNamespace(request=request, cluster=cluster, environ={})
    ray = SimpleNamespace(check=lambda: None)
    fake = SimpleNamespace(prepared=prepared, interruptions=clock, say=said.append, store=store, ray=ray, temp=temp)
    fake.alive = ray.check
    return cast(Head, fake)


def as_store(stored: Stored) -> Store:
    return cast(Store, stored)
