"""Inspects the processes of a job on this host several times, over some seconds."""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import host, stacks
from .doing import Doing, Kind, doing, own_frames, place

PAUSE = 5.0
"""The seconds between the first and the last inspection."""
_LOOKS = 4
_SHOWN = 4
"""The most functions of a stack that are shown."""
_BUSY, _POLLS = 0.2, 0.02
"""Shares of processor time: above the first, a process is computing; up to the second, it is only polling."""
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a job, with all observations of it."""

    host: str
    pid: int
    parent: int
    title: str
    began: int
    """The start time of the process in the kernel's clock ticks."""
    rank: int
    """The rank of the process. It is -1 if it has none."""
    size: int
    local: int
    """The number of ranks on the process's host. It is 0 if unknown."""
    group: str
    """The address at which the ranks of the process's group meet."""
    state: str
    """The kernel's letter for the state of the process at the last inspection."""
    busy: float
    """The share of processor time. It can be above 1 if the process has several threads."""
    moved: bool
    """True if the stack of the process changed between the inspections."""
    kind: Kind
    call: str
    place: str
    text: str
    stack: tuple[str, ...]
    problem: str
    """The reason why the stacks of the process cannot be read."""

    @property
    def works(self) -> bool:
        """Return whether the process made progress between the inspections."""
        return (self.moved and self.busy > _POLLS) or (self.busy > _BUSY and self.kind in (Kind.CODE, Kind.COMPILE))

    @property
    def name(self) -> str:
        """The process's name in the report."""
        rank = f"rank {self.rank}, " if self.rank >= 0 else ""
        return f"{short_title(self.title)} ({rank}pid {self.pid} on {self.host})"


def short_title(title: str) -> str:
    """Shorten a command line: drop the folder of the program."""
    words = title.split()
    if words and "python" in words[0].rpartition("/")[2]:
        words = [word for word in words[1:] if word not in ("-u", "-m", "-P", "-X")]
    return " ".join([words[0].rpartition("/")[2], *words[1:2]])[:60] if words else title


def members_of(job: host.Job, seen: Mapping[int, host.Process], pause: float) -> list[Member]:
    """Inspect the processes of a job several times. All inspections together take `pause` seconds."""
    processes = host.members(job, seen)
    looks = [_stacks(processes)]
    began = time.monotonic()
    for number in range(1, _LOOKS):
        time.sleep(max(0.0, began + pause * number / (_LOOKS - 1) - time.monotonic()))
        looks.append(_stacks(processes))
    again = {each.pid: host.process_of(each.pid) for each in processes}
    seconds = max(time.monotonic() - began, pause)
    name = socket.gethostname()
    return [
        _member(name, each, now, [look[each.pid] for look in looks], seconds)
        for each in processes
        if (now := again[each.pid]) is not None and now.began == each.began
    ]


def _stacks(processes: Sequence[host.Process]) -> dict[int, stacks.Stacks]:
    # A zombie has no stack.
    return {each.pid: stacks.Stacks() for each in processes} | stacks.read(
        [each.pid for each in processes if each.state not in "ZX"]
    )


def _member(
    name: str, before: host.Process, now: host.Process, looks: Sequence[stacks.Stacks], seconds: float
) -> Member:
    problem = next((each.problem for each in looks if each.problem), "")
    did = [Doing(Kind.UNSEEN) if problem else doing(each.threads) for each in looks]
    rank = host.rank_of(now.pid)
    return Member(
        host=name,
        pid=now.pid,
        parent=now.parent,
        title=now.title,
        began=now.began,
        rank=rank.rank if rank else -1,
        size=rank.size if rank else 0,
        local=rank.local if rank else 0,
        group=rank.group if rank else "",
        state=now.state,
        busy=round((now.seconds - before.seconds) / seconds, 3),
        moved=len({(each.kind, each.path, each.thread) for each in did}) > 1,
        kind=did[-1].kind,
        call=did[-1].call,
        place=did[-1].place,
        text=did[-1].text,
        stack=tuple(
            f"{place(frame)}: {frame.text}" for frame in own_frames(looks[-1].threads, did[-1].thread, _SHOWN)
        ),
        problem=problem,
    )


def as_json(member: Member) -> dict[str, object]:
    """Return a process as JSON content."""
    return {**dataclasses.asdict(member), "kind": member.kind.value, "works": member.works}


def from_json(row: Mapping[str, Any], where: str) -> Member:
    """Return a process that another host has inspected. Raises KeyError, TypeError, or ValueError if `row` is
    malformed."""
    told: dict[str, Any] = {}
    for field in dataclasses.fields(Member):
        value = row[field.name]
        if field.name == "kind":
            told[field.name] = Kind(value)
        elif field.name == "stack":
            told[field.name] = tuple(str(each)[:_LONGEST] for each in value[:_SHOWN])
        elif isinstance(value, str):
            told[field.name] = value[:_LONGEST]
        elif isinstance(value, bool | int | float):
            told[field.name] = value
        else:
            raise TypeError(field.name)
    # Several hosts may have the same name, so use the host's address.
    return dataclasses.replace(Member(**told), host=where)
