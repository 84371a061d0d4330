"""Reasons for the absence of a subject: it no longer exists, or it is not needed here. A missing name alone proves
nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..patch import Patch
from ..source.definition import Kind
from ..source.tree import SourceTree, Target, is_there, package_of, surroundings
from ..state import Standing
from .lock import THERE, Lock


@dataclass(frozen=True, slots=True)
class Baseline:
    """One upstream's locks, and the lock that is nearest to a source tree."""

    nearest: Lock | None
    exact: bool
    """Whether the tree is identical to the nearest pin."""
    locks: Sequence[Lock]
    packages: tuple[str, ...]
    """All top-level packages of the upstream, whether installed or not."""

    def needs(self, patch: Patch) -> bool:
        """Return whether the patch is needed at the pin nearest to the source tree."""
        return self.nearest is not None and self.nearest.patches.get(patch.id) is Standing.NEEDED


@dataclass(frozen=True, slots=True)
class Absence:
    """A subject that does not exist, and the reason why it does not exist."""

    subject: str
    gone: bool
    """Whether the subject no longer exists: the nearest pin has it, and nothing shows that it is not needed here."""
    reason: str
    """Where the subject is now, which pin also lacks it, or where it was looked for."""


def look(subject: str, known: Baseline, tree: SourceTree) -> Absence | None:
    """Return the reason why a subject (a module, a class, a function, or another name) does not exist, or None if it
    exists."""
    nearest = known.nearest
    recorded = nearest.subjects.get(subject) if nearest is not None else None
    if not tree.has_part(subject, known.packages[0]):
        # A wheel may omit a package of its upstream, or its contents may now be in another package.
        lost = recorded == THERE and not known.exact
        found = (_moved(subject, known, tree) or _renamed(subject, known, tree, module_too=True)) if lost else None
        return found or Absence(subject, False, _not_installed(package_of(subject), tree))
    if nearest is not None and known.exact and recorded is not None:
        return None if recorded == THERE else Absence(subject, False, f"absent at {nearest.pin}")
    if is_there(subject, tree):
        return _unbound(subject, recorded, tree) or _outside(subject, known.locks, tree)
    if nearest is None or recorded is None:
        return Absence(subject, False, "no known pin has it")
    if recorded != THERE:
        return Absence(subject, False, f"absent, as at {nearest.pin}")
    return _moved(subject, known, tree) or _missing(subject, nearest, known, tree)


def _not_installed(package: str, tree: SourceTree) -> str:
    place = tree.place_of(package)
    if not place:
        return f"{package} is not installed here"
    return f"another package named {package}, at {place}, hides upstream's"


def _moved(subject: str, known: Baseline, tree: SourceTree) -> Absence | None:
    """Return an absence that says where the code of a subject is now, or None if the code no longer exists."""
    if ":" not in subject:
        return None
    # Imported here, like everything that reads upstream's code: at a pin, the lock has all the answers.
    from ..source.moved import elsewhere

    target = Target.parse(subject)
    bodies = {lock.targets[target].outline[1:] for lock in known.locks if target in lock.targets}
    place = elsewhere(target, bodies, known.packages, tree)
    return None if place is None else Absence(subject, True, f"{subject} is gone; the same code is at {place}")


def _renamed(subject: str, known: Baseline, tree: SourceTree, *, module_too: bool = False) -> Absence | None:
    """Return an absence that points to something with the same name as a missing subject, or None if there is nothing.

    With `module_too`, also look for a module with the same name as the subject's module.
    """
    from ..source.moved import namesake

    other = namesake(subject, known.packages, tree)
    if other is not None:
        return Absence(subject, True, f"{subject} is gone; {other} has the same name")
    module = subject.partition(":")[0]
    other = namesake(module, known.packages, tree) if module_too else None
    if other is None:
        return None
    return Absence(subject, True, f"{subject} is gone; {module} is now {other}, which lacks that name")


def _missing(subject: str, nearest: Lock, known: Baseline, tree: SourceTree) -> Absence:
    """Return an absence for a subject that the nearest pin has: the subject no longer exists, or is not needed
    here."""
    from ..source.reader import importer

    module = subject.partition(":")[0]
    unread = tree.read(module) is None
    user = importer(subject, known.packages, tree)
    here = surroundings(subject, tree)
    alike = next((lock.pin for lock in known.locks if lock.subjects.get(subject) == str(here)), None)
    if alike is not None and user is None:
        return Absence(subject, False, f"{subject} is absent, as at {alike}: {here.place} defines the same names")
    renamed = _renamed(subject, known, tree)
    if renamed is not None:
        return renamed
    what = f"{subject} is gone{', or its source is not available' if unread else ''}"
    still = f", and {user} still uses {module if unread else 'it'}" if user is not None else ""
    return Absence(subject, True, f"{what}: {nearest.pin} has it, but {here.place} here does not{still}")


def _unbound(subject: str, recorded: str | None, tree: SourceTree) -> Absence | None:
    """Return an absence if no import executes the subject's definition, for example one under `if TYPE_CHECKING`."""
    if ":" not in subject:
        return None
    from ..source.reader import ends_of

    if ends_of(Target.parse(subject), tree):
        return None
    return Absence(subject, recorded == THERE, f"{subject} is defined only where an import does not execute it")


def _outside(subject: str, locks: Sequence[Lock], tree: SourceTree) -> Absence | None:
    """Return an absence if the pins define the subject, but this tree imports it from source that is not available."""
    if ":" not in subject:
        return None
    target = Target.parse(subject)
    origins = tree.origins(target)
    records = {lock.targets[target].kind for lock in locks if target in lock.targets}
    if not origins or Kind.IMPORTED.value in records or len(tree.chain(target)) > 1:
        return None
    if any(tree.read(f"{origin.module}.{origin.name}") is not None for origin in origins):
        return None  # a module, not a name inside one
    return Absence(subject, True, f"{subject} is now imported from {origins[-1].module}, which cannot be read")
