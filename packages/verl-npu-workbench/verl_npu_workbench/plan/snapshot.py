"""Compares a plan with a memory snapshot of a real run, which verl's profiler `torch_memory` writes.

A snapshot says which functions allocated a block, but not what the block is used for. The plan ran the same functions
and knows both, so that each block gets the holder of the plan's blocks of the same site and size.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from verl_npu.errors import PlanError
from verl_npu.language import gettext as _

from .job import TOLD, Holder, Phase, site_of
from .planning import Planned

_ROUNDED = 512
"""An NPU's blocks are a multiple of this number of bytes."""


class Block(NamedTuple):
    """A block of memory, and the frames that allocated it, innermost first: None if it was allocated before the
    recording began."""

    size: int
    frames: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Peak:
    """The blocks that an NPU held at one time."""

    blocks: Sequence[Block]
    events: int
    """The number of events in the history. Without a history, the blocks are those of the time of the snapshot."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A snapshot beside the moment of a plan that is most like it."""

    phase: str
    """The phase of the plan in which the memory is most like the snapshot's."""
    events: int
    planned: Mapping[str, int]
    """The bytes of each holder at that moment of the plan."""
    held: Mapping[str, int]
    """The bytes of each holder at the snapshot's peak."""
    places: Mapping[str, int]
    """The bytes that the plan does not know, by the site that allocated them, the largest first."""


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        raise pickle.UnpicklingError(f"{module}.{name}")


def read(path: Path) -> Peak:
    """Return the peak in a snapshot's history, for the NPU with the most memory.

    Raises:
        PlanError: the file is no snapshot. Nothing in the file is executed.
    """
    try:
        with path.open("rb") as file:
            told = _Plain(file).load()
        sizes: Counter[int] = Counter()
        for segment in told["segments"]:
            sizes[segment["device"]] += segment["total_size"]
        if not sizes:
            raise ValueError(_("no segments"))
        device = max(sizes, key=sizes.__getitem__)
        left = {
            block["address"]: Block(block.get("requested_size", block["size"]), block.get("frames") or None)
            for segment in told["segments"]
            if segment["device"] == device
            for block in segment["blocks"]
            if block["state"] != "inactive"
        }
        events = [*told["device_traces"], *[[]] * (device + 1)][device]
        return Peak(_peak(left, events), len(events))
    except Exception as error:  # a damaged pickle can raise anything
        raise PlanError(
            subject=str(path),
            expected=_(
                "a memory snapshot of one NPU's process, as verl writes it with global_profiler.tool=torch_memory: a "
                "pickle of only lists, dictionaries, numbers, and strings, with the keys segments and device_traces"
            ),
            found=f"{type(error).__name__}: {error}",
            fix=_("specify a file such as outputs/profile/step2/torch_memory_rank0_pid1234.pickle"),
        ) from error


def _peak(left: Mapping[int, Block], events: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Return the blocks at the peak of a history. `left` are the blocks after it, by address."""
    allocated: dict[int, Block] = {}
    before: dict[int, Block] = {}
    changes = []
    for event in events:
        size = {"alloc": event["size"], "free_completed": -event["size"]}.get(event["action"], 0)
        changes.append(size)
        if size > 0:
            allocated[event["addr"]] = Block(size, event["frames"])
        elif size and allocated.pop(event["addr"], None) is None:
            before[event["addr"]] = Block(-size)
    live = before | {address: block for address, block in left.items() if address not in allocated}
    totals = list(accumulate(changes, initial=sum(block.size for block in live.values())))
    for event, size in zip(events[: totals.index(max(totals))], changes, strict=False):
        if size > 0:
            live[event["addr"]] = Block(size, event["frames"])
        elif size:
            live.pop(event["addr"], None)
    return list(live.values())


def compare(planned: Planned, peak: Peak) -> Comparison:
    """Give each block at a peak the holder of the plan's blocks of the same site."""
    sites: dict[str, Counter[tuple[int, str]]] = {}
    for outcome in planned.outcomes:
        for site, blocks in outcome.sites.items():
            counted = sites.setdefault(site, Counter())
            for size, holder, lived in blocks:
                counted[size, holder] += lived
    held: Counter[str] = Counter()
    places: Counter[str] = Counter()
    unknown, early = _("not planned"), _("allocated before the recording")
    for block in peak.blocks:
        if block.frames is None:
            held[early] += block.size
            continue
        site = site_of((frame["filename"], frame["name"]) for frame in block.frames)
        if known := sites.get(site):
            held[_holder(known, -(-block.size // _ROUNDED) * _ROUNDED)] += block.size
        else:
            held[unknown] += block.size
            places[site] += block.size
    names = [holder.value for holder in TOLD if holder is not Holder.HOST]
    # The peaks of a plan and of a run can be in different phases.
    points = [point for outcome in planned.outcomes for point in outcome.timeline]
    like = min(points, key=lambda point: sum(abs(point.holders.get(name, 0) - held[name]) for name in names))
    # Only an enumeration's own texts are translated.
    rows = [*names, early, unknown]
    return Comparison(
        phase=Phase(like.phase).value,
        events=peak.events,
        planned={name: like.holders[name] for name in names if name in like.holders},
        held={name: held[name] for name in rows if held[name]},
        places=dict(places.most_common()),
    )


def _holder(known: Counter[tuple[int, str]], size: int) -> str:
    """Return the holder whose blocks of this size lived longest or, if the plan has none of this size, whose bytes."""
    same, any_size = Counter[str](), Counter[str]()
    for (each, holder), lived in known.items():
        any_size[holder] += each * lived
        same[holder] += lived * (each == size)
    chosen = same if any(same.values()) else any_size
    return max(chosen, key=chosen.__getitem__)
