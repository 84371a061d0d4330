"""What the syncs over one group leave for the next one."""

from __future__ import annotations

from collections.abc import Sequence

from .metadata import Entry, Metadata
from .plan import Plan

__all__ = ["History"]


class History:
    """The syncs over one group, as one of its ranks remembers them."""

    __slots__ = ("_begun", "_entries", "_metadata", "_plan")

    def __init__(self) -> None:
        self._begun = 0
        self._plan: Plan | None = None
        self._entries: list[Entry] | None = None
        self._metadata: Metadata | None = None

    @property
    def plan(self) -> Plan | None:
        """The plan of the last sync."""
        return self._plan

    def begin(self) -> int:
        """Begin a sync and return its number, counted from 1."""
        self._begun += 1
        return self._begun

    def keep(self, plan: Plan) -> None:
        """Keep the plan of this sync for the next one."""
        self._plan = plan

    def metadata_of(self, entries: Sequence[Entry]) -> Metadata:
        """Make the metadata, or return the last one if nothing changed: its digest is most of a small sync's work."""
        if self._metadata is None or self._entries != entries:
            self._entries, self._metadata = list(entries), Metadata.of(entries)
        return self._metadata
