"""Buckets: tensors of any dtype, contiguous or not, packed as bytes into a few large messages."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .drawing import Weight
from .metadata import Metadata, Spec

if TYPE_CHECKING:
    import torch

__all__ = ["Bucket", "divide", "find_tied", "views"]

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
