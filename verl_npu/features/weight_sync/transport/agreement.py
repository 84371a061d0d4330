"""Step 1 of a sync: what the ranks tell one another before a byte is moved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import MetadataError
from ..settings import Check
from .bucket import Bucket, Slots, plan
from .group import Group
from .metadata import Metadata, refusal

__all__ = ["Layout", "agree", "layout_of", "word"]


@dataclass(slots=True)
class Layout:
    """What stays the same from sync to sync."""

    metadata: Metadata
    tied: dict[str, str]
    bucket_bytes: int
    check: Check
    buckets: tuple[Bucket, ...]
    slots: Slots
    aliases: dict[str, list[str]] = field(default_factory=dict)


def agree(group: Group, number: int, metadata: Metadata | None, mine: bytes) -> tuple[Metadata, dict[str, Any]]:
    """Return the metadata that all share, and the source's word. Raises MetadataError, on all ranks alike."""
    words = [json.loads(text) for text in group.exchange(f"{number}/metadata", mine)]
    for rank, told in enumerate(words):
        if "error" in told:
            group.let_others_read(f"{number}/metadata")
            raise MetadataError(
                f"weight sync {number} of group {group.name!r}: {group.describe(rank)} could not begin: "
                f"{told['error']}. Nothing was loaded"
            )
    digests = {rank: told["digest"] for rank, told in enumerate(words) if told["digest"] is not None}
    source = digests[0]
    known: Metadata | None = group.layout.metadata if group.layout is not None else None
    if metadata is not None and metadata.digest != (source if group.rank else known and known.digest):
        # The list itself travels once for each content: from the source when it is new, from others where it differs.
        group.tell(f"list/{metadata.digest}", metadata.as_json().encode())
    if len(set(digests.values())) > 1:
        lists = {digest: Metadata.from_json(group.ask(f"list/{digest}").decode()) for digest in digests.values()}
        group.let_others_read(f"{number}/metadata")
        problem = refusal({rank: lists[digest] for rank, digest in digests.items()}, group.describe)
        raise MetadataError(f"weight sync {number} of group {group.name!r}: {problem}")
    if metadata is None:
        if known is not None and known.digest == source:
            return known, words[0]
        metadata = Metadata.from_json(group.ask(f"list/{source}").decode())
    return metadata, words[0]


def layout_of(group: Group, metadata: Metadata, told: Mapping[str, Any]) -> Layout:
    """Divide it into buckets as the source says, or give the last layout where nothing has changed."""
    tied, limit, check = dict(told["tied"]), int(told["bucket"]), Check(told["check"])
    known: Layout | None = group.layout
    if known is not None and (known.metadata.digest, known.tied, known.bucket_bytes) == (metadata.digest, tied, limit):
        known.check = check
        return known
    buckets = plan(metadata, tied, limit)
    if not group.moves:
        slots = Slots((), group.device, 0)
    elif group.rank == 0:
        slots = Slots.to_send(buckets, group.device)
    else:
        slots = Slots.to_receive(buckets, group.device, limit)
    layout = Layout(metadata, tied, limit, check, buckets, slots)
    for name, first in tied.items():
        layout.aliases.setdefault(first, []).append(name)
    group.layout = layout
    return layout


def word(digest: str | None = None, **more: Any) -> bytes:
    """What a rank tells: the digest of its metadata, and the source also how it will send."""
    return json.dumps({"digest": digest, **more}).encode()
