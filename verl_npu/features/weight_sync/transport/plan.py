"""The plan of a sync: which buckets carry its tensors, and through which buffers they go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..settings import Check
from .bucket import Bucket
from .metadata import Metadata
from .slots import Slots

__all__ = ["Plan"]


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
