"""What is not there: gone, or not needed here. Nothing is concluded from a name that was not found."""

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
    """What a tree is compared with, for one upstream."""

    nearest: Lock | None
    exact: bool
    """Whether the tree is that very pin."""
    locks: Sequence[Lock]
    packages: tuple[str, ...]
    """All top-level packages of the upstream, here or not."""

    def needs(self, patch: Patch) -> bool:
        """Whether the patch is needed at the nearest pin."""
        return self.nearest is not None and self.nearest.patches.get(patch.id) is Standing.NEEDED


@dataclass(frozen=True, slots=True)
class Absence:
    """Something that is not there."""

    subject: str
    gone: bool
    """Whether the nearest pin has it, and nothing shows that it need not be here."""
    reason: str
    """Where it went, or which pin does not have it either, or what was looked for."""


def look(subject: str, known: Baseline, tree: SourceTree) -> Absence | None:
    """Say why a subject is not there; None if it is."""
    nearest = known.nearest
    recorded = nearest.subjects.get(subject) if nearest is not None else None
    if not tree.has_part(subject, known.packages[0]):
        # A package of an upstream may be left out by its wheels. Or what was in it is now in another one.
        lost = recorded == THERE and not known.exact
        found = (_moved(subject, known, tree) or _renamed(subject, known, tree, module_too=True)) if lost else None
        return found or Absence(subject, False, _not_here(package_of(subject), tree))
    if nearest is not None and known.exact and recorded is not None:
        return None if recorded == THERE else Absence(subject, False, f"not there at {nearest.pin}")
    if is_there(subject, tree):
        return _unbound(subject, recorded, tree) or _outside(subject, known.locks, tree)
    if nearest is None or recorded is None:
        return Absence(subject, False, "no pin is known to have it")
    if recorded != THERE:
        return Absence(subject, False, f"not there, as at {nearest.pin}")
    return _moved(subject, known, tree) or _missing(subject, nearest, known, tree)


def _not_here(package: str, tree: SourceTree) -> str:
    place = tree.place_of(package)
    if not place:
        return f"{package} is not installed here"
    return f"{package} is another one here: {place} stands in front, and does not have it"


def _moved(subject: str, known: Baseline, tree: SourceTree) -> Absence | None:
    """Say where the code of something is now; None if it is nowhere."""
    if ":" not in subject:
        return None
    # Imported here, as what else reads upstream's code: of a pin the lock has all that is asked for.
    from ..source.moved import elsewhere

    target = Target.parse(subject)
    bodies = {lock.targets[target].outline[1:] for lock in known.locks if target in lock.targets}
    place = elsewhere(target, bodies, known.packages, tree)
    return None if place is None else Absence(subject, True, f"{subject} is gone; the same code stands at {place}")


def _renamed(subject: str, known: Baseline, tree: SourceTree, *, module_too: bool = False) -> Absence | None:
    """Say what has the name of something that is gone, or of its module; None if nothing has."""
    from ..source.moved import namesake

    other = namesake(subject, known.packages, tree)
    if other is not None:
        return Absence(subject, True, f"{subject} is gone; {other} has the same name")
    module = subject.partition(":")[0]
    other = namesake(module, known.packages, tree) if module_too else None
    if other is None:
        return None
    return Absence(subject, True, f"{subject} is gone; {module} is now {other}, which does not have it")


def _missing(subject: str, nearest: Lock, known: Baseline, tree: SourceTree) -> Absence:
    """Say whether what is not there, and the nearest pin has, is gone or is not needed here."""
    from ..source.reader import importer

    module = subject.partition(":")[0]
    unread = tree.read(module) is None
    user = importer(subject, known.packages, tree)
    here = surroundings(subject, tree)
    alike = next((lock.pin for lock in known.locks if lock.subjects.get(subject) == str(here)), None)
    if alike is not None and user is None:
        return Absence(subject, False, f"{subject} is not there, as at {alike}: {here.place} has the same names in it")
    renamed = _renamed(subject, known, tree)
    if renamed is not None:
        return renamed
    what = f"{subject} is gone{', or its source is not available' if unread else ''}"
    still = f", and {user} still uses {module if unread else 'it'}" if user is not None else ""
    return Absence(subject, True, f"{what}: {nearest.pin} has it, {here.place} here does not{still}")


def _unbound(subject: str, recorded: str | None, tree: SourceTree) -> Absence | None:
    """Say if a definition is there that no process comes by which imports its module: under `if TYPE_CHECKING`."""
    if ":" not in subject:
        return None
    from ..source.reader import ends_of

    if ends_of(Target.parse(subject), tree):
        return None
    return Absence(subject, recorded == THERE, f"{subject} is defined only where an import does not execute it")


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
