"""Which pin a source tree is, judged by the content of the targets and never by a version string."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..activity import UpstreamEntry
from ..source.presence import is_there, package_of
from ..source.probe import Atom
from ..source.tree import SourceTree
from .lock import THERE, Lock, Record

__all__ = ["Revision", "identify"]


@dataclass(frozen=True, slots=True)
class Revision:
    """The pin that a tree is, or is nearest to."""

    nearest_pin: str
    exact: bool
    differs: tuple[str, ...]
    """The targets that are not as the nearest pin has them, what else is not there as it is at that pin, and the
    questions that have another answer."""

    def as_json(self) -> UpstreamEntry:
        """The plain form for manifests and commands."""
        return {"nearest_pin": self.nearest_pin, "exact": self.exact, "differs": list(self.differs)}

    def __str__(self) -> str:
        if self.exact:
            return self.nearest_pin
        return f"nearest {self.nearest_pin}, {len(self.differs)} difference(s)" if self.nearest_pin else "not found"


def identify(tree: SourceTree, locks: Sequence[Lock], atoms: Iterable[Atom]) -> tuple[Revision, Lock | None]:
    """Find the pin that `tree` is, or the one that it shares most targets with.

    It is that very pin if every target is the same, and every question that a patch asks (`atoms`) has the same
    answer and is about something that is there as it is at the pin: what a lock says is believed for no other tree.
    Packages that are not in the tree do not count: recipes lie beside verl in a checkout, and are in no wheel.
    """
    # Hashing bytes is far cheaper than parsing: the usual case, an untouched release, ends here.
    same_files = [lock for lock in locks if lock.files and _same_files(tree, lock)]
    if same_files:
        # Releases may share every file that matters here; of these, the one that the tree calls itself is meant.
        named = (lock for lock in same_files if len(same_files) > 1 and _calls_itself(tree, lock))
        lock = next(named, same_files[0])
        return Revision(lock.pin, True, ()), lock
    nearest = max(locks, key=lambda lock: _likeness(tree, lock), default=None)
    if nearest is None:
        return Revision("", False, ()), None
    differs = [
        str(target)
        for target, record in sorted(nearest.targets.items())
        if target.package in tree and Record.of(tree.definition(target)) != record
    ]
    asked = {str(atom): atom for atom in atoms if package_of(atom.subject) in tree}
    # The answer to a question about something that is gone is no. That may well be what the pin answers, too.
    subjects = sorted({atom.subject for atom in asked.values()} - {*differs})
    differs += [s for s in subjects if is_there(s, tree) != (nearest.subjects.get(s) == THERE)]
    differs += sorted(text for text, atom in asked.items() if nearest.answers.get(text) != atom.holds(tree))
    return Revision(nearest.pin, not differs, tuple(differs)), nearest


def _likeness(tree: SourceTree, lock: Lock) -> tuple[int, float, int]:
    """How many targets are as in `lock`; which share of the others' statements is; how many files are the same."""
    same, share = 0, 0.0
    for target, record in lock.targets.items():
        if target.package not in tree:
            continue
        observed = Record.of(tree.definition(target))
        if observed == record:
            same += 1
        else:
            kept = sum((Counter(observed.outline) & Counter(record.outline)).values())
            share += kept / max(len(observed.outline), len(record.outline), 1)
    return same, share, sum((tree.digest(module) or "") == digest for module, digest in lock.files.items())


def _same_files(tree: SourceTree, lock: Lock) -> bool:
    present = {module: digest for module, digest in lock.files.items() if package_of(module) in tree}
    return bool(present) and all((tree.digest(module) or "") == digest for module, digest in present.items())


def _calls_itself(tree: SourceTree, lock: Lock) -> bool:
    packages = {target.package for target in lock.targets}
    return any(tree.declared_version(package) == lock.pin.removeprefix("v") for package in packages)
