"""Step 2 of a sync: the weights move over HCCL, one bucket while the next one is packed or on its way."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ....errors import TransferError
from ..settings import Check
from .bucket import Bucket
from .checksum import as_bytes, checksum_of
from .communicator import Work
from .drawing import Weight, draw, draw_no_more
from .group import Group
from .plan import Plan

if TYPE_CHECKING:
    import torch

__all__ = ["Engine", "Seen", "receive_buckets", "send_buckets"]


class Engine(Protocol):
    """The taker of the weights on a rollout rank."""

    def load(self, weights: Sequence[Weight]) -> None:
        """Load these tensors, which are views that change after the return. The engine is closed from now on."""
        ...

    def open(self) -> None:
        """Allow the engine to be used: all weights are there."""
        ...

    def expect(self, weights: Sequence[Weight]) -> None:
        """Take note of these tensors, which are loaded next, for the proof."""
        ...

    def prove(self) -> str:
        """Say in words that the engine holds what was loaded, bit for bit. Raises EngineError if it does not."""
        ...


@dataclass(frozen=True, slots=True)
class Seen:
    """What a rank saw of the weights, if the check needs it."""

    digest: str | None = None
    """SHA-256 over the names and the checksums of all buckets."""
    held: str = ""
    """In words, what the engine was seen to hold."""


@dataclass(frozen=True, slots=True)
class _Moving:
    """A bucket on its way."""

    buffer: torch.Tensor
    checksum: torch.Tensor | None
    works: tuple[Work, ...]

    def wait(self, group: Group, number: int) -> None:
        """Wait for its broadcasts in sync `number`. Raises the errors of `Group.finish`."""
        for work in self.works:
            group.finish(work, number)


def send_buckets(group: Group, plan: Plan, weights: Iterator[Weight], number: int) -> Seen:
    """Send as rank 0.

    Raises MetadataError if a tensor is not as it was announced.
    """
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
    for bucket_on_its_way in moving:
        bucket_on_its_way.wait(group, number)
    if plan.check is not Check.ENGINE:
        return Seen()
    digest = _digest_of(plan, sums)
    group.messages.put(f"sha/{number}", digest.encode())
    return Seen(digest)


def receive_buckets(group: Group, plan: Plan, engine: Engine, number: int) -> Seen:
    """Receive into `engine`.

    Raises TransferError if what arrived is not what was sent, EngineError if the engine does not hold it then.
    """
    sums: list[torch.Tensor] = []
    aliases = plan.aliases()
    empty = _without_bytes(group, plan)
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
        # On an NPU the next broadcast into this buffer waits in the stream for the copies out of it.
        if index + 2 < len(plan.buckets):
            moving.append(_expect(group, plan, index + 2))
    if plan.check is not Check.ENGINE:
        return Seen()
    digest = _digest_of(plan, sums)
    sent = group.messages.get(f"sha/{number}").decode()
    if digest != sent:
        raise _altered(f"weights with the SHA-256 {sent}, as rank 0 sent them", f"weights with {digest}")
    return Seen(sent, engine.prove())


def _digest_of(plan: Plan, sums: Sequence[torch.Tensor]) -> str:
    """Return the SHA-256 over what each rank saw: names, in the order of the buckets, and the buckets' checksums."""
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
    # The checksum is computed while its bucket is on its way.
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
    raise _altered("the bytes that rank 0 sent", f"other bytes: the checksum of bucket {index} ({names}) differs")


def _altered(expected: str, found: str) -> TransferError:
    return TransferError(
        subject="weights that arrived",
        expected=expected,
        found=found,
        fix="the bytes changed on their way: check the links between these NPUs, and HCCL's own log",
    )


def _without_bytes(group: Group, plan: Plan) -> list[Weight]:
    import torch

    return [
        (spec.name, torch.empty(spec.shape, dtype=spec.torch_dtype, device=group.device))
        for spec in plan.metadata
        if spec.nbytes == 0
    ]
