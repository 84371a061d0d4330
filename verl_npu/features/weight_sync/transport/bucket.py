"""Buckets: tensors of any dtype and layout, packed as bytes into a few large messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .metadata import Metadata, Spec

__all__ = ["Bucket", "Slots", "plan", "views"]

# What torch_npu's allocator aligns to: every tensor starts where one of its own would.
ALIGNMENT = 512
# From here on a message of its own costs less than a copy. It is not known where that is on a real NPU.
LARGE = 4 << 20


@dataclass(frozen=True, slots=True)
class Bucket:
    """One message: which tensors are in it, and at which byte each begins."""

    specs: tuple[Spec, ...]
    offsets: tuple[int, ...]
    nbytes: int
    direct: bool
    """A single tensor that is sent from its own memory: no copy."""
    drawn: tuple[Spec, ...]
    """What the source draws for it: its own specs in order, and what stands before them without bytes of its own."""

    @property
    def names(self) -> list[str]:
        return [spec.name for spec in self.specs]


def plan(metadata: Metadata, tied: Mapping[str, str], limit: int) -> tuple[Bucket, ...]:
    """Divide what has bytes of its own, in order, into buckets of at most `limit` bytes.

    Tied tensors travel under one name. A large tensor goes by itself, not copied.
    """
    buckets: list[Bucket] = []
    specs: list[Spec] = []
    offsets: list[int] = []
    drawn: list[Spec] = []
    end = 0

    def close(direct: bool = False) -> None:
        nonlocal end
        if specs:
            buckets.append(Bucket(tuple(specs), tuple(offsets), end, direct, tuple(drawn)))
            for filled in (specs, offsets, drawn):
                filled.clear()
        end = 0

    for spec in metadata:
        large = spec.nbytes >= min(LARGE, limit // 2)
        start = -(-end // ALIGNMENT) * ALIGNMENT
        if spec.name in tied or spec.nbytes == 0:
            drawn.append(spec)
            continue
        # The order in which the source's tensors are drawn is the order in which they are sent.
        if large or start + spec.nbytes > limit:
            close()
            start = 0
        specs.append(spec)
        offsets.append(start)
        drawn.append(spec)
        end = start + spec.nbytes
        if large:
            close(direct=True)
    close()
    return tuple(buckets)


def views(bucket: Bucket, buffer: Any) -> list[Any]:
    """The tensors of a bucket as views into `buffer` (uint8, at least the bucket's bytes)."""
    out = []
    for spec, offset in zip(bucket.specs, bucket.offsets, strict=True):
        out.append(buffer[offset : offset + spec.nbytes].view(spec.torch_dtype).view(spec.shape))
    return out


class Slots:
    """Two buffers in turn, and for each bucket its views into one of them.

    They are kept from sync to sync: with thousands of tensors, making the views costs more than moving the bytes.
    """

    __slots__ = ("_buckets", "_buffers", "_device", "_size", "_views")

    def __init__(self, buckets: Sequence[Bucket], device: Any, size: int) -> None:
        import torch

        self._buckets = buckets
        self._device = device
        self._size = size
        # Zeros: the gaps between tensors are sent too, and a checksum must not depend on what was there before.
        self._buffers = [torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2)]
        self._views: dict[int, list[Any]] = {}

    @classmethod
    def to_send(cls, buckets: Sequence[Bucket], device: Any) -> Slots:
        """For the source, which copies into them what is not sent from its own memory."""
        return cls(buckets, device, max((bucket.nbytes for bucket in buckets if not bucket.direct), default=0))

    @classmethod
    def to_receive(cls, buckets: Sequence[Bucket], device: Any, limit: int) -> Slots:
        """For a rollout, which receives into them all that is not larger than `limit` bytes."""
        return cls(buckets, device, max((bucket.nbytes for bucket in buckets if bucket.nbytes <= limit), default=0))

    def buffer(self, index: int) -> Any:
        """The memory of bucket `index`, of exactly its bytes: a shared buffer, or its own for one that is larger."""
        import torch

        nbytes = self._buckets[index].nbytes
        if nbytes > self._size:
            return torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        return self._buffers[index % 2][:nbytes]

    def views(self, index: int, buffer: Any) -> list[Any]:
        """The tensors of bucket `index` in `buffer`."""
        bucket = self._buckets[index]
        if bucket.nbytes > self._size:
            return views(bucket, buffer)
        if index not in self._views:
            self._views[index] = views(bucket, buffer)
        return self._views[index]


def find_tied(tensors: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """Which names are other names of one piece of memory: `{name: the name it travels under}`."""
    seen: dict[tuple[Any, ...], str] = {}
    tied: dict[str, str] = {}
    for name, tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)
        if local.numel() == 0:
            continue
        key = (local.data_ptr(), local.dtype, tensor.shape, local.stride(), local.device)
        first = seen.setdefault(key, name)
        if first != name:
            tied[name] = first
    return tied
