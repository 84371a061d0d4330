"""What a sync sends in: buckets, which are tensors packed into a few large messages, and two buffers for them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..settings import Check
from .tensors import Entry, Metadata, Spec, Weight

if TYPE_CHECKING:
    import torch

# The alignment of torch_npu's allocator: every tensor starts where one with memory of its own would.
ALIGNMENT = 512


# From this size on, a message of its own costs less than a copy. The right size for a real NPU is not known.
LARGE = 4 << 20


@dataclass(frozen=True, slots=True)
class Bucket:
    """One message: the tensors in it, and the byte at which each begins."""

    specs: tuple[Spec, ...]
    offsets: tuple[int, ...]
    nbytes: int
    direct: bool
    """Whether it is a single tensor that is sent from its own memory, without a copy."""
    drawn: tuple[Spec, ...]
    """What rank 0 draws for it: its specs in order, with the tensors before them that are not sent (tied, empty)."""

    @property
    def names(self) -> list[str]:
        """The names of its tensors."""
        return [spec.name for spec in self.specs]


def divide(metadata: Metadata, tied: Mapping[str, str], limit: int) -> tuple[Bucket, ...]:
    """Divide the tensors that have bytes of their own, in order, into buckets of at most `limit` bytes.

    Tied tensors are sent once, under one name. A large tensor is a bucket by itself and is not copied.
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
        # Tensors are sent in the order in which rank 0 draws them.
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


def views(bucket: Bucket, buffer: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors of a bucket as views into `buffer` (uint8, at least the bucket's bytes)."""
    return [
        buffer[offset : offset + spec.nbytes].view(spec.torch_dtype).view(spec.shape)
        for spec, offset in zip(bucket.specs, bucket.offsets, strict=True)
    ]


def find_tied(tensors: Iterable[Weight]) -> dict[str, str]:
    """Return the names that are further names of one piece of memory: `{name: the name under which it is sent}`."""
    seen: dict[Hashable, str] = {}
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


class Slots:
    """Two buffers, used in turn, and for each bucket its views into one of them.

    Both stay from sync to sync: with thousands of tensors, making the views costs more than moving the bytes.
    """

    __slots__ = ("_buckets", "_buffers", "_device", "_size", "_views")

    def __init__(self, buckets: Sequence[Bucket], device: torch.device | None, size: int) -> None:
        import torch

        self._buckets = buckets
        self._device = device
        self._size = size
        # Zeros: the gaps between tensors are sent too, and a checksum must not depend on what lay there before.
        self._buffers = [torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2)]
        self._views: dict[int, list[torch.Tensor]] = {}

    def buffer(self, index: int) -> torch.Tensor:
        """Return memory for exactly the bytes of bucket `index`: one of the buffers, or new memory if it is larger."""
        import torch

        nbytes = self._buckets[index].nbytes
        if nbytes > self._size:
            return torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        return self._buffers[index % 2][:nbytes]

    def views(self, index: int, buffer: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of bucket `index` as views into `buffer`, which is what `buffer(index)` gave."""
        bucket = self._buckets[index]
        if bucket.nbytes > self._size:
            return views(bucket, buffer)
        if index not in self._views:
            self._views[index] = views(bucket, buffer)
        return self._views[index]


@dataclass(frozen=True, slots=True)
class Plan:
    """What stays the same from sync to sync, as long as the metadata and rank 0's settings do."""

    metadata: Metadata
    tied: Mapping[str, str]
    """Further names of tensors that are sent once, each with the name under which it is sent."""
    bucket_bytes: int
    check: Check
    buckets: tuple[Bucket, ...]
    slots: Slots

    @property
    def nbytes(self) -> int:
        """The bytes that are sent."""
        return sum(bucket.nbytes for bucket in self.buckets)

    def aliases(self) -> dict[str, list[str]]:
        """Return the further names of each tensor that is sent under one of several."""
        aliases: dict[str, list[str]] = {}
        for name, sent in self.tied.items():
            aliases.setdefault(sent, []).append(name)
        return aliases


@dataclass(slots=True)
class History:
    """The syncs over one group, as one of its ranks remembers them."""

    begun: int = 0
    plan: Plan | None = None
    """That of the last sync."""
    _entries: list[Entry] | None = None
    _metadata: Metadata | None = None

    def begin(self) -> int:
        """Begin a sync and return its number, counted from 1."""
        self.begun += 1
        return self.begun

    def metadata_of(self, entries: Sequence[Entry]) -> Metadata:
        """Make the metadata, or return the last one if nothing changed: its digest is most of a small sync's work."""
        if self._metadata is None or self._entries != entries:
            self._entries, self._metadata = list(entries), Metadata.of(entries)
        return self._metadata
