"""The plan of a sync: the buckets that pack tensors into a few large messages, and two buffers for the buckets."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..settings import Check
from .tensors import Entry, Metadata, Spec, Weight

if TYPE_CHECKING:
    import torch

# The alignment of torch_npu's allocator, so that every tensor is aligned as if it had its own memory.
ALIGNMENT = 512


# From this size, a separate message costs less than a copy. The best size for a real NPU is unknown.
LARGE = 4 << 20


@dataclass(frozen=True, slots=True)
class Bucket:
    """A group of tensors that is sent as one message, and the offset of each tensor in bytes."""

    specs: tuple[Spec, ...]
    offsets: tuple[int, ...]
    nbytes: int
    direct: bool
    """Whether the bucket is a single tensor that is sent from its own memory without being copied."""
    drawn: tuple[Spec, ...]
    """The tensors that rank 0 takes from the weights for this bucket, in order. They include tied and empty tensors,
    which are not sent."""

    @property
    def names(self) -> list[str]:
        """The names of the tensors in the bucket."""
        return [spec.name for spec in self.specs]


def divide(metadata: Metadata, tied: Mapping[str, str], limit: int) -> tuple[Bucket, ...]:
    """Divide the tensors, in order, into buckets of at most `limit` bytes.

    Tied tensors are sent once, under one of their names, and empty tensors are not sent. A large tensor gets its own
    bucket and is sent without being copied.
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
        # Rank 0 sends tensors in the order of the weights.
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
    """Return the tensors of a bucket as views into `buffer`, a uint8 tensor with at least the bucket's size."""
    return [
        buffer[offset : offset + spec.nbytes].view(spec.torch_dtype).view(spec.shape)
        for spec, offset in zip(bucket.specs, bucket.offsets, strict=True)
    ]


def find_tied(tensors: Iterable[Weight]) -> dict[str, str]:
    """Find tensors that share memory. Return a mapping from each additional name of such a tensor to the name that is
    sent."""
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
    """Two buffers that are used alternately, and the views that show each bucket's tensors in one of the buffers.

    Buffers and views are kept from sync to sync. With thousands of tensors, creating the views takes longer than
    transferring the bytes.
    """

    __slots__ = ("_buckets", "_buffers", "_device", "_size", "_views")

    def __init__(self, buckets: Sequence[Bucket], device: torch.device | None, size: int) -> None:
        import torch

        self._buckets = buckets
        self._device = device
        self._size = size
        # Zeros, because the gaps between tensors are sent too, and a checksum must not depend on old memory contents.
        self._buffers = [torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2)]
        self._views: dict[int, list[torch.Tensor]] = {}

    def buffer(self, index: int) -> torch.Tensor:
        """Return a block of memory that is exactly as large as bucket `index`. The block is part of a buffer, or newly
        allocated if the bucket is larger than a buffer."""
        import torch

        nbytes = self._buckets[index].nbytes
        if nbytes > self._size:
            return torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        return self._buffers[index % 2][:nbytes]

    def views(self, index: int, buffer: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of bucket `index` as views into `buffer`, which must be the tensor that the method
        `buffer` returned for this index."""
        bucket = self._buckets[index]
        if bucket.nbytes > self._size:
            return views(bucket, buffer)
        if index not in self._views:
            self._views[index] = views(bucket, buffer)
        return self._views[index]


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts of a sync that do not change as long as the metadata and rank 0's settings stay the same."""

    metadata: Metadata
    tied: Mapping[str, str]
    """The additional names of tensors, each with the name under which the tensor is sent."""
    bucket_bytes: int
    check: Check
    buckets: tuple[Bucket, ...]
    slots: Slots

    @property
    def nbytes(self) -> int:
        """The number of bytes that are sent."""
        return sum(bucket.nbytes for bucket in self.buckets)

    def aliases(self) -> dict[str, list[str]]:
        """Return the additional names of each sent tensor that has more than one name."""
        aliases: dict[str, list[str]] = {}
        for name, sent in self.tied.items():
            aliases.setdefault(sent, []).append(name)
        return aliases


@dataclass(slots=True)
class History:
    """One rank's record of the syncs in a group."""

    begun: int = 0
    plan: Plan | None = None
    """The plan of the last sync."""
    _entries: list[Entry] | None = None
    _metadata: Metadata | None = None

    def begin(self) -> int:
        """Begin a sync, and return its number. The first sync has the number 1."""
        self.begun += 1
        return self.begun

    def metadata_of(self, entries: Sequence[Entry]) -> Metadata:
        """Return the metadata for these entries. If the entries have not changed, return the previous metadata,
        because computing the metadata's digest is expensive."""
        if self._metadata is None or self._entries != entries:
            self._entries, self._metadata = list(entries), Metadata.of(entries)
        return self._metadata
