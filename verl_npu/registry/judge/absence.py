"""Why something is not there: it went somewhere, or it need not be here, or nobody knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..source.definition import Kind
from ..source.presence import importer, is_there, namesake, package_of, surroundings
from ..source.target import Target
from ..source.tree import SourceTree
from ..source.whereabouts import elsewhere
from .lock import THERE, Lock

__all__ = ["Absence", "Found", "look"]


@dataclass(frozen=True, slots=True)
class Absence:
    """Something that is not there."""

    subject: str
    gone: bool
    """Whether the nearest pin has it, and nothing shows that it need not be here."""
    reason: str
    """Where it went, or which pin does not have it either, or what was looked for."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a tree was found to be, for one upstream: the nearest pin, whether it is that very pin, and all locks."""

    nearest: Lock | None
    exact: bool
    locks: Sequence[Lock]
    packages: tuple[str, ...]
    """All top-level packages of the upstream, here or not."""


def look(subject: str, found: Found, tree: SourceTree) -> Absence | None:
    """Say why a subject is not there; None if it is."""
    nearest = found.nearest
    recorded = nearest.subjects.get(subject) if nearest is not None else None
    if package_of(subject) not in tree:
        return _without_package(subject, recorded, found, tree)
    if nearest is not None and found.exact and recorded is not None:
        return None if recorded == THERE else Absence(subject, False, f"not there at {nearest.pin}")
    if is_there(subject, tree):
        return _outside(subject, found.locks, tree)
    if nearest is None or recorded is None:
        return Absence(subject, False, "no pin is known to have it")
    if recorded != THERE:
        return Absence(subject, False, f"not there, as at {nearest.pin}")
    return _moved(subject, found, tree) or _missing(subject, nearest, found, tree)


def _without_package(subject: str, recorded: str | None, found: Found, tree: SourceTree) -> Absence:
    # A package of an upstream may be left out by its wheels. Or what was in it is now in another one.
    left_out = Absence(subject, False, f"{package_of(subject)} is not installed here")
    if recorded != THERE or found.exact:
        return left_out
    return _moved(subject, found, tree) or _renamed(subject, found, tree) or _emptied(subject, found, tree) or left_out


def _moved(subject: str, found: Found, tree: SourceTree) -> Absence | None:
    """Say where the code of something is now; None if it is nowhere."""
    if ":" not in subject:
        return None
    target = Target.parse(subject)
    bodies = {lock.targets[target].outline[1:] for lock in found.locks if target in lock.targets}
    place = elsewhere(target, bodies, found.packages, tree)
    return None if place is None else Absence(subject, True, f"{subject} is gone; the same code stands at {place}")


def _renamed(subject: str, found: Found, tree: SourceTree) -> Absence | None:
    """Say what has the name of something that is gone; None if nothing has."""
    other = namesake(subject, found.packages, tree)
    return None if other is None else Absence(subject, True, f"{subject} is gone; of that name there is {other}")


def _emptied(subject: str, found: Found, tree: SourceTree) -> Absence | None:
    """Say what has the name of the module of something that is gone, without it; None if nothing has."""
    module = subject.partition(":")[0]
    other = namesake(module, found.packages, tree)
    return None if other is None else Absence(subject, True, f"{subject} is gone; {module} is {other} now, without it")


def _missing(subject: str, nearest: Lock, found: Found, tree: SourceTree) -> Absence:
    """Say whether what is not there, and the nearest pin has, is gone or is not needed here."""
    module = subject.partition(":")[0]
    unread = tree.read(module) is None
    user = importer(module, found.packages, tree) if unread else None
    here = surroundings(subject, tree)
    alike = next((lock.pin for lock in found.locks if lock.subjects.get(subject) == str(here)), None)
    if alike is not None and user is None:
        return Absence(subject, False, f"{subject} is not there, as at {alike}: {here.place} has the same names in it")
    renamed = _renamed(subject, found, tree)
    if renamed is not None:
        return renamed
    what = f"{subject} is gone{', or its source is not available' if unread else ''}"
    still = f", and {user} still imports {module}" if user is not None else ""
    return Absence(subject, True, f"{what}: {nearest.pin} has it, {here.place} here does not{still}")


def _outside(subject: str, locks: Sequence[Lock], tree: SourceTree) -> Absence | None:
    """Say if a name is imported from where the source is not to be had, and was defined at the pins."""
    if ":" not in subject:
        return None
    target = Target.parse(subject)
    origins = tree.origins(target)
    records = {lock.targets[target].kind for lock in locks if target in lock.targets}
    if not origins or Kind.IMPORTED.value in records or len(tree.chain(target)) > 1:
        return None
    if any(tree.read(f"{origin.module}.{origin.name}") is not None for origin in origins):
        return None  # a module, and not what is in one
    return Absence(subject, True, f"{subject} is imported here, from {origins[-1].module}, which cannot be read")
