"""One weight sync in a group: agree on the weights, move them bucket by bucket, and agree that they arrived.

    rank                         1. announcement         2. buckets            3. verdict 0, the source (`send`)
    digest, ties, sizes     broadcasts            sent or not other trainers (`follow`)    digest                  draw
    their shards     drawn or not rollouts (`receive`)         digest                  receive and load      loaded or
    not

A rank that fails reports the reason in its message of step 1 or 3, so that every rank raises an error with the reason.
If a rank sends no message, the error names that rank. From its first load until all verdicts are good, an engine is
closed: it runs no batches.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ....errors import GroupError, TransferError, WeightSyncError
from ..settings import Check, Settings
from .communicator import Work
from .group import Group
from .plan import Bucket, Plan, Slots, divide
from .tensors import Metadata, Weight, as_bytes, checksum_of, disagreement, draw, draw_no_more, exhaust

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Announcement:
    """The message that a rank sends before a sync. Rank 0's message also contains the tied tensors and the settings of
    the sync."""

    digest: str | None = None
    """The digest of the metadata that this rank expects. None if it accepts any metadata from rank 0."""
    error: str | None = None
    """The reason why this rank cannot begin the sync. None if this rank can begin."""
    tied: dict[str, str] = field(default_factory=dict)
    bucket_bytes: int = 0
    check: Check = Check.NONE

    def encode(self) -> bytes:
        """Return the announcement as a message."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def decode(cls, message: bytes) -> Announcement:
        """Read an announcement (a rank's message before a sync) from bytes."""
        fields = json.loads(message)
        return cls(**{**fields, "check": Check(fields["check"])})


def agree(
    group: Group, number: int, metadata: Metadata | None, announcement: Announcement
) -> tuple[Metadata, Announcement]:
    """Exchange announcements. Return the metadata that all ranks share, and the announcement of rank 0.

    All ranks raise WeightSyncError if one of them cannot begin the sync, or if the ranks expect different parameters.
    """
    topic, messages = f"{number}/metadata", group.messages
    announced = [Announcement.decode(message) for message in messages.exchange(topic, announcement.encode())]
    for rank, other in enumerate(announced):
        if other.error is not None:
            messages.let_others_read(topic)
            raise WeightSyncError(
                subject=f"weight sync {number} of group {group.name!r}",
                found=f"{group.describe(rank)} could not start the sync, so no engine has loaded new weights: "
                f"{other.error}",
                fix="fix the error of that rank",
            )
    digests = {rank: other.digest for rank, other in enumerate(announced) if other.digest is not None}
    source = digests[0]
    last = group.history.plan.metadata if group.history.plan is not None else None
    if metadata is not None and metadata.digest != (source if group.rank else last and last.digest):
        # Each list is sent only once: by rank 0 if it is new, by other ranks if theirs differs.
        messages.put(f"list/{metadata.digest}", metadata.as_json().encode())
    if len(set(digests.values())) > 1:
        lists = {digest: Metadata.from_json(messages.get(f"list/{digest}").decode()) for digest in digests.values()}
        messages.let_others_read(topic)
        raise WeightSyncError(
            subject=f"weight sync {number} of group {group.name!r}",
            expected="the same parameters on all ranks",
            found=str(disagreement({rank: lists[digest] for rank, digest in digests.items()}, group.describe)),
            fix="use the same model and dtype for the trainer and the rollout. No engine has loaded new weights",
        )
    if metadata is None:
        if last is not None and last.digest == source:
            return last, announced[0]
        metadata = Metadata.from_json(messages.get(f"list/{source}").decode())
    return metadata, announced[0]


def make_plan(group: Group, metadata: Metadata, announcement: Announcement) -> Plan:
    """Divide the tensors into buckets, with the settings in rank 0's announcement. If nothing has changed, return the
    previous plan."""
    tied, limit, check = announcement.tied, announcement.bucket_bytes, announcement.check
    last = group.history.plan
    if last is not None and (last.metadata.digest, last.tied, last.bucket_bytes) == (metadata.digest, tied, limit):
        plan = last if last.check is check else dataclasses.replace(last, check=check)
    else:
        buckets = divide(metadata, tied, limit)
        # Rank 0 needs buffers for the buckets that it does not send from a tensor's own memory, and rollouts need them
        # for the buckets up to the limit.
        held = [each for each in buckets if (not each.direct if group.rank == 0 else each.nbytes <= limit)]
        size = max((each.nbytes for each in held), default=0) if group.moves else 0
        plan = Plan(metadata, tied, limit, check, buckets, Slots(buckets, group.device, size))
    group.history.plan = plan
    return plan


class Engine(Protocol):
    """The rollout engine of one rank. The engine receives the weights."""

    def load(self, weights: Sequence[Weight]) -> None:
        """Prevent the engine from running batches until `open` is called, and load these tensors. The tensors are
        views whose values change after this call returns, so copy the values."""
        ...

    def open(self) -> None:
        """Allow the engine to resume running batches, because all weights have arrived."""
        ...

    def expect(self, weights: Sequence[Weight]) -> None:
        """Record the tensors that are about to be loaded, so that `prove` can check them."""
        ...

    def prove(self) -> str:
        """Prove that the engine holds the loaded weights. Return the proof as a string. Raises WeightSyncError if the
        engine's weights differ from the loaded weights."""
        ...


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of the check on one rank. Its fields are empty if the user did not request a check."""

    digest: str | None = None
    """The SHA-256 over the names of all tensors and the checksums of all buckets."""
    held: str = ""
    """The proof of the engine's weights, as a string."""


@dataclass(frozen=True, slots=True)
class _Moving:
    """A bucket whose transfer is in progress."""

    buffer: torch.Tensor
    checksum: torch.Tensor | None
    works: tuple[Work, ...]

    def wait(self, group: Group, number: int) -> None:
        """Wait for the bucket's broadcasts. `number` identifies the sync. Raises the same errors as `Group.finish`."""
        for work in self.works:
            group.finish(work, number)


def send_buckets(group: Group, plan: Plan, weights: Iterator[Weight], number: int) -> CheckResult:
    """Send all buckets, as rank 0. Raises WeightSyncError if a tensor does not have the name, shape, and dtype that
    the plan specifies for it."""
    import torch

    moving: deque[_Moving] = deque()
    sums: list[torch.Tensor] = []
    for index, bucket in enumerate(plan.buckets):
        tensors = draw(weights, bucket.drawn)
        if len(bucket.drawn) != len(bucket.specs):
            own = {spec.name for spec in bucket.specs}
            tensors = [tensor for spec, tensor in zip(bucket.drawn, tensors, strict=True) if spec.name in own]
        if len(moving) == 2:
            moving.popleft().wait(group, number)
        if bucket.direct:
            buffer = as_bytes(tensors[0].to(group.device))
        else:
            buffer = plan.slots.buffer(index)
            with torch.no_grad():
                torch._foreach_copy_(plan.slots.views(index, buffer), tensors)
        started = _start(group, plan, buffer, checksum_of)
        moving.append(started)
        if started.checksum is not None:
            sums.append(started.checksum)
    drawn = sum(len(bucket.drawn) for bucket in plan.buckets)
    draw(weights, plan.metadata.specs[drawn:])
    draw_no_more(weights)
    for remaining in moving:
        remaining.wait(group, number)
    if plan.check is not Check.ENGINE:
        return CheckResult()
    digest = _digest_of(plan, sums)
    group.messages.put(f"sha/{number}", digest.encode())
    return CheckResult(digest)


def receive_buckets(group: Group, plan: Plan, engine: Engine, number: int) -> CheckResult:
    """Receive all buckets, and load them into `engine`.

    Raises TransferError if the received weights differ from the sent weights. Raises WeightSyncError if the engine's
    weights then differ from the received weights.
    """
    sums: list[torch.Tensor] = []
    aliases = plan.aliases()
    empty = _empty_weights(group, plan)
    if empty:
        engine.load(empty)
    moving = deque(_expect(group, plan, index) for index in range(min(2, len(plan.buckets))))
    for index, bucket in enumerate(plan.buckets):
        arrived = moving.popleft()
        arrived.wait(group, number)
        _verify(index, bucket, arrived)
        tensors = plan.slots.views(index, arrived.buffer)
        weights = list(zip(bucket.names, tensors, strict=True))
        for name, tensor in tuple(weights) if aliases else ():
            weights += [(alias, tensor) for alias in aliases.get(name, ())]
        if arrived.checksum is not None:
            sums.append(arrived.checksum)
        if plan.check is Check.ENGINE:
            engine.expect(weights)
        engine.load(weights)
        # On an NPU, the next broadcast into this buffer waits in the stream for the copies out of it.
        if index + 2 < len(plan.buckets):
            moving.append(_expect(group, plan, index + 2))
    if plan.check is not Check.ENGINE:
        return CheckResult()
    digest = _digest_of(plan, sums)
    sent = group.messages.get(f"sha/{number}").decode()
    if digest != sent:
        raise _altered(f"weights with the SHA-256 {sent}, as sent by rank 0", f"weights with the SHA-256 {digest}")
    return CheckResult(sent, engine.prove())


def _digest_of(plan: Plan, sums: Sequence[torch.Tensor]) -> str:
    """Return the SHA-256 over the names of all tensors, in the order of the buckets, and over the checksums of the
    buckets."""
    digest = hashlib.sha256()
    for bucket, both in zip(plan.buckets, sums, strict=True):
        digest.update("\0".join(bucket.names).encode())
        digest.update(both.cpu().numpy().tobytes())
    return digest.hexdigest()


def _start(
    group: Group, plan: Plan, buffer: torch.Tensor, checksum: Callable[[torch.Tensor], torch.Tensor]
) -> _Moving:
    work = group.broadcast(buffer)
    if plan.check is Check.NONE:
        return _Moving(buffer, None, (work,))
    # Compute the checksum while the bucket is in transit.
    sums = checksum(buffer)
    return _Moving(buffer, sums, (work, group.broadcast(sums)))


def _expect(group: Group, plan: Plan, index: int) -> _Moving:
    import torch

    def room(buffer: torch.Tensor) -> torch.Tensor:
        return torch.zeros(2, dtype=torch.int64, device=buffer.device)

    return _start(group, plan, plan.slots.buffer(index), room)


def _verify(index: int, bucket: Bucket, arrived: _Moving) -> None:
    import torch

    if arrived.checksum is None or torch.equal(arrived.checksum.cpu(), checksum_of(arrived.buffer).cpu()):
        return
    names = f"{bucket.specs[0].name} to {bucket.specs[-1].name}"
    raise _altered("the bytes that rank 0 sent", f"bucket {index} ({names}) with a different checksum")


def _altered(expected: str, found: str) -> TransferError:
    return TransferError(
        subject="received weights",
        expected=expected,
        found=found,
        fix="check HCCL's own log, and check the links between these NPUs, because bytes changed in transit",
    )


def _empty_weights(group: Group, plan: Plan) -> list[Weight]:
    import torch

    return [
        (spec.name, torch.empty(spec.shape, dtype=spec.torch_dtype, device=group.device))
        for spec in plan.metadata
        if spec.nbytes == 0
    ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a sync on this rank."""

    number: int
    tensors: int
    nbytes: int
    seconds: float
    seen: CheckResult


@contextlib.contextmanager
def preparing(group: Group) -> Iterator[None]:
    """Context manager for a rank's preparation before a sync. If an error occurs within the `with` block, notify all
    ranks, and raise the error again.

    Raises GroupError if the group is broken.
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
    """Send the weights, as rank 0.

    The weights are consumed in the order of `metadata`. Even after a failure, all weights are consumed, because other
    ranks may have to gather their shards at the same time. Raises WeightSyncError if the ranks disagree, TransferError
    if the weights did not arrive on every rank, and GroupError if a rank has exited.
    """
    drawn = iter(weights)
    announcement = Announcement(
        metadata.digest, tied=dict(tied or {}), bucket_bytes=settings.bucket_bytes, check=settings.check
    )

    def move(plan: Plan, number: int) -> CheckResult:
        return send_buckets(group, plan, drawn, number)

    return _run(group, metadata, announcement, move, drain=lambda: exhaust(drawn))


def follow(group: Group, metadata: Metadata, weights: Iterable[Weight]) -> Outcome:
    """Take part in a sync as a trainer that sends nothing. Consume the tensors at the same time as rank 0, and check
    them.

    Raises the same errors as `send`.
    """
    drawn = iter(weights)

    def move(plan: Plan, number: int) -> CheckResult:
        # One by one, because a list of them would be the whole gathered model.
        for spec in metadata:
            draw(drawn, (spec,))
        draw_no_more(drawn)
        return CheckResult()

    return _run(group, metadata, Announcement(metadata.digest), move, drain=lambda: exhaust(drawn))


def receive(group: Group, metadata: Metadata | None, engine: Engine) -> Outcome:
    """Receive the weights into `engine`. `metadata` describes the weights that this rank expects. If it is None, this
    rank accepts any metadata from rank 0.

    The engine resumes running batches only if no rank failed. Raises the same errors as `send`.
    """

    def move(plan: Plan, number: int) -> CheckResult:
        return receive_buckets(group, plan, engine, number)

    announcement = Announcement(metadata.digest if metadata else None)
    return _run(group, metadata, announcement, move, commit=engine.open)


def _run(
    group: Group,
    metadata: Metadata | None,
    announcement: Announcement,
    move: Callable[[Plan, int], CheckResult],
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
    seen = CheckResult()
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
    """Run step 3, the verdict. Return only if every rank reports success."""
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
            found=f"the weights did not reach every rank: {' | '.join(failed)}",
            fix="fix the first of these errors, and start the job again. No engine uses weights of this sync",
        )
        group.break_off(str(refusal))
        raise refusal from failure


def _give_up(group: Group, number: int, verdict: bytes, failure: Exception, drain: Callable[[], None] | None) -> None:
    """Leave the sync before the verdict, because other ranks may hang in a broadcast that this rank has left."""
    # Objects in the frames of the failed broadcast would keep its connections open.
    traceback.clear_frames(failure.__traceback__)
    group.give_up(number, verdict.decode())
    with contextlib.suppress(GroupError):
        group.messages.put(f"{number}/done/{group.rank}", verdict)
    if drain is not None:
        with contextlib.suppress(Exception):
            drain()
