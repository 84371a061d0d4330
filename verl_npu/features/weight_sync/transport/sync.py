"""One sync of weights over a group: agree on what comes, move it bucket by bucket, and agree that it came.

    rank                      1. exchange "metadata"    2. buckets            3. exchange "done"
    0, the source (`send`)       digest, ties, sizes       broadcasts           its verdict
    other trainers (`follow`)    digest                    draw their shards    their verdict
    rollouts (`receive`)         digest                    receive and load     their verdict

Whatever goes wrong on one rank is in its word of step 1 or 3, so every rank raises an error that says it; and a rank
that says nothing is named. An engine stays closed from its first load until all verdicts are good.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from ..errors import GroupError, TransferError
from ..settings import Check, Settings
from .agreement import Layout, agree, layout_of, word
from .checksum import add_to_digest, as_bytes, checksum_of
from .drawing import draw, draw_no_more, exhaust
from .group import Group
from .metadata import Metadata

__all__ = ["Engine", "Outcome", "follow", "preparing", "receive", "send"]

Weights = Sequence[tuple[str, Any]]


class Engine(Protocol):
    """What takes the weights on a rollout rank."""

    def load(self, weights: Weights) -> None:
        """Take these tensors over: they are views that change after the return. Closed from now on."""
        ...

    def open(self) -> None:
        """All weights are there: the engine may be used."""
        ...

    def compare(self, sent: Mapping[str, Any]) -> None:
        """Raise EngineError where the engine does not hold the tensors in `sent`, bit for bit."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a sync did on this rank."""

    number: int
    tensors: int
    nbytes: int
    seconds: float
    digest: str | None = None
    """SHA-256 over all names and bytes, where the check asks for it."""


@contextlib.contextmanager
def preparing(group: Group) -> Iterator[None]:
    """Whatever is raised inside, before this rank takes part in a sync, is told to all ranks and raised on."""
    group.check_usable()
    try:
        yield
    except Exception as error:
        number = group.syncs = group.syncs + 1
        with contextlib.suppress(GroupError):
            group.exchange(f"{number}/metadata", word(error=f"{type(error).__name__}: {error}"), group.grace)
            group.let_others_read(f"{number}/metadata")
        raise


def send(
    group: Group,
    metadata: Metadata,
    tensors: Iterable[tuple[str, Any]],
    settings: Settings,
    tied: Mapping[str, str] | None = None,
) -> Outcome:
    """Send, as rank 0. `tensors` are drawn in the order of `metadata`, to the end even after a failure: other ranks
    may draw their shards of them together with this one.

    Raises MetadataError where ranks disagree, TransferError where the weights did not arrive everywhere.
    """
    tied, drawn = dict(tied or {}), iter(tensors)
    told = word(metadata.digest, tied=tied, bucket=settings.bucket_bytes, check=settings.check.value)

    def move(layout: Layout) -> str | None:
        return _send_buckets(group, layout, drawn)

    return _run(group, metadata, told, move, lambda: exhaust(drawn))


def follow(group: Group, metadata: Metadata, tensors: Iterable[tuple[str, Any]]) -> Outcome:
    """Take part as a trainer that sends nothing: draw the tensors together with rank 0, and check them."""
    drawn = iter(tensors)

    def move(layout: Layout) -> str | None:
        # One by one: a list of them would be the whole model, gathered.
        for spec in metadata:
            draw(drawn, (spec,))
        draw_no_more(drawn)
        return None

    return _run(group, metadata, word(metadata.digest), move, lambda: exhaust(drawn))


def receive(group: Group, metadata: Metadata | None, engine: Engine) -> Outcome:
    """Receive into `engine`; `metadata` is what this rank expects, None is whatever comes.

    Raises as `send`; the engine is open again only after a sync that came whole to every rank.
    """

    def move(layout: Layout) -> str | None:
        return _receive_buckets(group, layout, engine)

    return _run(group, metadata, word(metadata.digest if metadata else None), move, None, engine.open)


def _run(
    group: Group,
    metadata: Metadata | None,
    mine: bytes,
    move: Callable[[Layout], str | None],
    drain: Callable[[], None] | None,
    commit: Callable[[], None] | None = None,
) -> Outcome:
    group.check_usable()
    began = time.perf_counter()
    number = group.syncs = group.syncs + 1
    try:
        agreed, told = agree(group, number, metadata, mine)
    except GroupError as error:
        group.break_off(str(error))
        raise
    failure: Exception | None = None
    digest = None
    try:
        layout = layout_of(group, agreed, told)
        digest = move(layout)
        if group.moves:
            group.wait_for_device()
    except Exception as error:
        failure = error
    _conclude(group, number, failure, drain)
    if commit is not None:
        commit()
    if number > 2:
        group.forget([f"{number - 2}/metadata", f"{number - 2}/done"])
    moved = sum(bucket.nbytes for bucket in layout.buckets)
    return Outcome(number, len(agreed), moved, time.perf_counter() - began, digest)


def _conclude(group: Group, number: int, failure: Exception | None, drain: Callable[[], None] | None) -> None:
    """Step 3. Return only where every rank has said that all went well."""
    verdict = b""
    if failure is not None:
        # Before the others are asked: they may hang in a broadcast that this rank has left, and what a frame of the
        # failed broadcast still holds would keep its connections open.
        traceback.clear_frames(failure.__traceback__)
        group.break_off(str(failure))
        verdict = f"{type(failure).__name__}: {failure}".encode()
        with contextlib.suppress(GroupError):
            group.tell(f"{number}/done/{group.rank}", verdict)
        if drain is not None:
            with contextlib.suppress(Exception):
                drain()
    try:
        words = group.exchange(f"{number}/done", verdict, group.grace if failure is not None else None)
        bad = [f"{group.describe(rank)}: {text.decode()}" for rank, text in enumerate(words) if text]
        if bad:
            group.let_others_read(f"{number}/done")
    except GroupError as error:
        heard = {**group.heard(f"{number}/done"), group.rank: verdict}
        bad = [f"{group.describe(rank)}: {text.decode()}" for rank, text in sorted(heard.items()) if text]
        bad.append(str(error))
    if bad:
        text = f"weight sync {number} of group {group.name!r} failed: {' | '.join(bad)}"
        group.break_off(text)
        raise TransferError(f"{text}. What an engine has of this sync is not used") from failure


def _send_buckets(group: Group, layout: Layout, drawn: Iterator[tuple[str, Any]]) -> str | None:
    import torch

    total = hashlib.sha256() if layout.check is Check.ENGINE else None
    limit = timedelta(seconds=group.timeout)
    running: list[tuple[Any, Any]] = []
    for index, bucket in enumerate(layout.buckets):
        tensors = draw(drawn, bucket.drawn)
        if len(bucket.drawn) != len(bucket.specs):
            own = {spec.name for spec in bucket.specs}
            tensors = [t for spec, t in zip(bucket.drawn, tensors, strict=True) if spec.name in own]
        if len(running) == 2:
            running.pop(0)[0].wait(limit)
        if bucket.direct:
            buffer = as_bytes(tensors[0].to(group.device))
        else:
            buffer = layout.slots.buffer(index)
            with torch.no_grad():
                torch._foreach_copy_(layout.slots.views(index, buffer), tensors)
        works = [group.broadcast(buffer)]
        if layout.check is not Check.NONE:
            works.append(group.broadcast(checksum_of(buffer)))
        if total is not None:
            add_to_digest(total, bucket.specs, tensors)
        running.append((_Works(works), buffer))
    counted = sum(len(bucket.drawn) for bucket in layout.buckets)
    draw(drawn, layout.metadata.specs[counted:])
    draw_no_more(drawn)
    for works, _ in running:
        works.wait(limit)
    if total is not None:
        group.tell(f"sha/{group.syncs}", total.hexdigest().encode())
    return total.hexdigest() if total is not None else None


def _receive_buckets(group: Group, layout: Layout, engine: Engine) -> str | None:
    import torch

    total = hashlib.sha256() if layout.check is Check.ENGINE else None
    limit = timedelta(seconds=group.timeout)
    kept: dict[str, Any] = {}
    empty = _without_bytes(group, layout)
    if empty:
        engine.load(empty)
    posted: list[tuple[Any, Any, Any]] = []

    def post(index: int) -> None:
        if index < len(layout.buckets):
            buffer = layout.slots.buffer(index)
            works = [group.broadcast(buffer)]
            checksum = None
            if layout.check is not Check.NONE:
                checksum = torch.zeros(2, dtype=torch.int64, device=group.device)
                works.append(group.broadcast(checksum))
            posted.append((_Works(works), buffer, checksum))

    post(0)
    post(1)
    for index, bucket in enumerate(layout.buckets):
        works, buffer, checksum = posted.pop(0)
        works.wait(limit)
        if checksum is not None and not torch.equal(checksum.cpu(), checksum_of(buffer).cpu()):
            names = f"{bucket.specs[0].name} to {bucket.specs[-1].name}"
            raise TransferError(f"the checksum of bucket {index} ({names}) is not the source's: its bytes changed")
        tensors = layout.slots.views(index, buffer)
        weights = list(zip(bucket.names, tensors, strict=True))
        for name, tensor in tuple(weights) if layout.aliases else ():
            weights += [(alias, tensor) for alias in layout.aliases.get(name, ())]
        engine.load(weights)
        if total is not None:
            add_to_digest(total, bucket.specs, tensors)
            kept.update((name, tensor.to("cpu", copy=True)) for name, tensor in weights)
        # On an NPU the next broadcast into this buffer waits in the stream for the copies out of it.
        post(index + 2)
    if total is not None:
        source = group.ask(f"sha/{group.syncs}").decode()
        if total.hexdigest() != source:
            raise TransferError(f"SHA-256 of what arrived is {total.hexdigest()}, of what was sent {source}")
        engine.compare(kept)
    return total.hexdigest() if total is not None else None


class _Works:
    """A bucket's broadcasts, and its checksum's where there is one."""

    __slots__ = ("_works",)

    def __init__(self, works: list[Any]) -> None:
        self._works = works

    def wait(self, limit: timedelta) -> None:
        for work in self._works:
            work.wait(limit)


def _without_bytes(group: Group, layout: Layout) -> list[tuple[str, Any]]:
    import torch

    return [
        (spec.name, torch.empty(spec.shape, dtype=spec.torch_dtype, device=group.device))
        for spec in layout.metadata
        if spec.nbytes == 0
    ]
