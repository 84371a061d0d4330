"""Step 1 of a sync: the ranks announce what they expect and agree on it before a byte is moved."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field

from ....errors import MetadataError
from ..settings import Check
from .bucket import divide
from .group import Group
from .metadata import Metadata, disagreement
from .plan import Plan
from .slots import Slots

__all__ = ["Announcement", "agree", "make_plan"]


@dataclass(frozen=True, slots=True)
class Announcement:
    """The message of a rank before a sync. Rank 0 also announces how it will send."""

    digest: str | None = None
    """The digest of the metadata that this rank expects; None if it takes whatever rank 0 sends."""
    error: str | None = None
    """Why this rank cannot begin."""
    tied: dict[str, str] = field(default_factory=dict)
    bucket_bytes: int = 0
    check: Check = Check.NONE

    def encode(self) -> bytes:
        """Write it as a message."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def decode(cls, message: bytes) -> Announcement:
        """Read a message."""
        fields = json.loads(message)
        return cls(**{**fields, "check": Check(fields["check"])})


def agree(
    group: Group, number: int, metadata: Metadata | None, announcement: Announcement
) -> tuple[Metadata, Announcement]:
    """Return the metadata that all ranks share, and the announcement of rank 0.

    Raises MetadataError on all ranks alike if one cannot begin, or if they expect different parameters.
    """
    topic, messages = f"{number}/metadata", group.messages
    announced = [Announcement.decode(message) for message in messages.exchange(topic, announcement.encode())]
    for rank, other in enumerate(announced):
        if other.error is not None:
            messages.let_others_read(topic)
            raise MetadataError(
                subject=f"weight sync {number} of group {group.name!r}",
                expected="every rank to begin",
                found=f"that {group.describe(rank)} could not begin: {other.error}",
                fix="mend the error of that rank; nothing was loaded",
            )
    digests = {rank: other.digest for rank, other in enumerate(announced) if other.digest is not None}
    source = digests[0]
    last = group.history.plan.metadata if group.history.plan is not None else None
    if metadata is not None and metadata.digest != (source if group.rank else last and last.digest):
        # The list itself is sent once for each content: by rank 0 if it is new, by others if theirs is different.
        messages.put(f"list/{metadata.digest}", metadata.as_json().encode())
    if len(set(digests.values())) > 1:
        lists = {digest: Metadata.from_json(messages.get(f"list/{digest}").decode()) for digest in digests.values()}
        messages.let_others_read(topic)
        raise MetadataError(
            subject=f"weight sync {number} of group {group.name!r}",
            expected="the same parameters on all ranks",
            found=str(disagreement({rank: lists[digest] for rank, digest in digests.items()}, group.describe)),
            fix="give trainer and rollout the same model and dtype; nothing was loaded",
        )
    if metadata is None:
        if last is not None and last.digest == source:
            return last, announced[0]
        metadata = Metadata.from_json(messages.get(f"list/{source}").decode())
    return metadata, announced[0]


def make_plan(group: Group, metadata: Metadata, announcement: Announcement) -> Plan:
    """Divide the tensors into buckets as rank 0 announced it; return the last plan if nothing has changed."""
    tied, limit, check = announcement.tied, announcement.bucket_bytes, announcement.check
    last = group.history.plan
    if last is not None and (last.metadata.digest, last.tied, last.bucket_bytes) == (metadata.digest, tied, limit):
        plan = last if last.check is check else dataclasses.replace(last, check=check)
    else:
        buckets = divide(metadata, tied, limit)
        if not group.moves:
            slots = Slots((), group.device, 0)
        elif group.rank == 0:
            slots = Slots.to_send(buckets, group.device)
        else:
            slots = Slots.to_receive(buckets, group.device, limit)
        plan = Plan(metadata, tied, limit, check, buckets, slots)
    group.history.keep(plan)
    return plan
