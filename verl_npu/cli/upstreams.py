"""The upstreams as the commands see them: a source that the user names, and the locks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..features import UPSTREAMS, locks_folder
from ..registry.judge.lock import Lock, read_locks
from ..registry.source.tree import SourceTree

__all__ = ["INSTALLED", "locks", "tree"]

INSTALLED = "installed"


def tree(source: str) -> SourceTree:
    """The installed upstreams, or with `source` a checkout or wheel, verl from there and the others as installed."""
    found = SourceTree.installed([package for upstream in UPSTREAMS for package in upstream.packages])
    if source == INSTALLED:
        return found
    return found.with_packages(SourceTree.at(Path(source), UPSTREAMS[0].packages))


def locks() -> Mapping[str, Sequence[Lock]]:
    """All locks, by upstream."""
    return {upstream.name: read_locks(locks_folder(), upstream.name) for upstream in UPSTREAMS}
