"""One sync of weights over a group: agree on what comes, move it bucket by bucket, and agree that it came.

    rank                         1. announcement         2. buckets            3. verdict
    0, the source (`send`)       digest, ties, sizes     broadcasts            sent or not
    other trainers (`follow`)    digest                  draw their shards     drawn or not
    rollouts (`receive`)         digest                  receive and load      loaded or not

Whatever goes wrong on one rank is in its message of step 1 or 3, so every rank raises an error that says it; and a
rank that sends no message is named. An engine stays closed from its first load until all verdicts are good.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ....errors import GroupError, TransferError
from ..settings import Settings
from .agreement import Announcement, agree, make_plan
from .drawing import Weight, draw, draw_no_more, exhaust
from .group import Group
from .metadata import Metadata
from .plan import Plan
from .transfer import Engine, Seen, receive_buckets, send_buckets

__all__ = ["Outcome", "follow", "preparing", "receive", "send"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a sync did on this rank."""

    number: int
    tensors: int
    nbytes: int
    seconds: float
    seen: Seen


@contextlib.contextmanager
def preparing(group: Group) -> Iterator[None]:
    """Inside, before this rank takes part in a sync, an error is sent to all ranks and then raised.

    Raises GroupError if the group broke.
    """
    group.check_usable()
    try:
        yield
    except Exception as error:
        topic = f"{group.history.begin()}/metadata"
        with contextlib.suppress(GroupError):
            announcement = Announcement(error=f"{type(error).__name__}: {error}")
            group.messages.exchange(topic, announcement.encode(), group.messages.grace)
            group.messages.let_others_read(topic)
        raise


def send(
    group: Group,
    metadata: Metadata,
    weights: Iterable[Weight],
    settings: Settings,
    tied: Mapping[str, str] | None = None,
) -> Outcome:
    """Send as rank 0. `weights` are drawn in the order of `metadata`, and to the end even after a failure, because
    other ranks may draw their shards of them together with this one.

    Raises MetadataError if the ranks disagree, TransferError if the weights did not arrive everywhere, GroupError if a
    rank is gone.
    """
    drawn = iter(weights)
    announcement = Announcement(
        metadata.digest, tied=dict(tied or {}), bucket_bytes=settings.bucket_bytes, check=settings.check
    )

    def move(plan: Plan, number: int) -> Seen:
        return send_buckets(group, plan, drawn, number)

    return _run(group, metadata, announcement, move, drain=lambda: exhaust(drawn))


def follow(group: Group, metadata: Metadata, weights: Iterable[Weight]) -> Outcome:
    """Take part as a trainer that sends nothing: draw the tensors together with rank 0, and check them.

    Raises the errors of `send`.
    """
    drawn = iter(weights)

    def move(plan: Plan, number: int) -> Seen:
        # One by one: a list of them would be the whole model, gathered.
        for spec in metadata:
            draw(drawn, (spec,))
        draw_no_more(drawn)
        return Seen()

    return _run(group, metadata, Announcement(metadata.digest), move, drain=lambda: exhaust(drawn))


def receive(group: Group, metadata: Metadata | None, engine: Engine) -> Outcome:
    """Receive into `engine`. `metadata` is what this rank expects; with None it takes whatever rank 0 sends.

    Raises the errors of `send`, and opens the engine again only after a sync in which no rank failed.
    """

    def move(plan: Plan, number: int) -> Seen:
        return receive_buckets(group, plan, engine, number)

    announcement = Announcement(metadata.digest if metadata else None)
    return _run(group, metadata, announcement, move, commit=engine.open)


def _run(
    group: Group,
    metadata: Metadata | None,
    announcement: Announcement,
    move: Callable[[Plan, int], Seen],
    drain: Callable[[], None] | None = None,
    commit: Callable[[], None] | None = None,
) -> Outcome:
    group.check_usable()
    began = time.perf_counter()
    number = group.history.begin()
    try:
        agreed, of_source = agree(group, number, metadata, announcement)
    except GroupError as error:
        group.break_off(str(error))
        raise
    failure: Exception | None = None
    seen = Seen()
    try:
        plan = make_plan(group, agreed, of_source)
        seen = move(plan, number)
        if group.moves:
            group.wait_for_device(number)
    except Exception as error:
        failure = error
    _conclude(group, number, failure, drain)
    if commit is not None:
        commit()
    if number > 2:
        group.messages.forget([f"{number - 2}/metadata", f"{number - 2}/done"])
    return Outcome(number, len(agreed), plan.nbytes, time.perf_counter() - began, seen)


def _conclude(group: Group, number: int, failure: Exception | None, drain: Callable[[], None] | None) -> None:
    """Step 3. Return only if every rank has said that all went well."""
    topic, verdict = f"{number}/done", b""
    if failure is not None:
        verdict = f"{type(failure).__name__}: {failure}".encode()
        _give_up(group, number, verdict, failure, drain)
    messages = group.messages
    try:
        verdicts = messages.exchange(topic, verdict, messages.grace if failure is not None else None)
        failed = [f"{group.describe(rank)}: {text.decode()}" for rank, text in enumerate(verdicts) if text]
        if failed:
            messages.let_others_read(topic)
    except GroupError as error:
        known = {**messages.so_far(topic), group.rank: verdict}
        failed = [f"{group.describe(rank)}: {text.decode()}" for rank, text in sorted(known.items()) if text]
        failed.append(str(error))
    if failed:
        refusal = TransferError(
            subject=f"weight sync {number} of group {group.name!r}",
            expected="the weights on every rank",
            found=f"failures: {' | '.join(failed)}",
            fix="mend the first of them and start the job again; what an engine has of this sync is not used",
        )
        group.break_off(str(refusal))
        raise refusal from failure


def _give_up(group: Group, number: int, verdict: bytes, failure: Exception, drain: Callable[[], None] | None) -> None:
    """Leave the sync before verdicts are exchanged: others may hang in a broadcast that this rank has left."""
    # What a frame of the failed broadcast still holds would keep its connections open.
    traceback.clear_frames(failure.__traceback__)
    group.give_up(number, verdict.decode())
    with contextlib.suppress(GroupError):
        group.messages.put(f"{number}/done/{group.rank}", verdict)
    if drain is not None:
        with contextlib.suppress(Exception):
            drain()
