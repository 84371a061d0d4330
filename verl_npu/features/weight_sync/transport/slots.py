"""The two buffers through which the buckets of a sync go in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .bucket import Bucket, views

if TYPE_CHECKING:
    import torch

__all__ = ["Slots"]


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

    @classmethod
    def to_send(cls, buckets: Sequence[Bucket], device: torch.device | None) -> Slots:
        """Make them for rank 0, which copies into them the tensors that are not sent from their own memory."""
        return cls(buckets, device, max((bucket.nbytes for bucket in buckets if not bucket.direct), default=0))

    @classmethod
    def to_receive(cls, buckets: Sequence[Bucket], device: torch.device | None, limit: int) -> Slots:
        """Make them for a rollout, which receives into them every bucket of at most `limit` bytes."""
        return cls(buckets, device, max((bucket.nbytes for bucket in buckets if bucket.nbytes <= limit), default=0))

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
