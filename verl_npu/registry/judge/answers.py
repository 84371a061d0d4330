"""The answers to the questions of the patches, for one tree: recorded where its source is a pin's, else looked up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..source.definition import Kind
from ..source.presence import importer, is_there, package_of, surroundings
from ..source.probe import Atom
from ..source.target import Target
from ..source.tree import SourceTree
from ..source.whereabouts import elsewhere
from .lock import THERE, Lock

__all__ = ["Absence", "Answers", "Found"]


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


class Answers:
    """Answers atoms, and says whether subjects are there, for one tree."""

    def __init__(self, tree: SourceTree, found: Callable[[str], Found]) -> None:
        """`found` gives what is known of the upstream that brings a top-level package."""
        self.tree = tree
        self._found = found
        self._answers: dict[Atom, bool | None] = {}
        self._absences: dict[str, Absence | None] = {}

    def ask(self, atom: Atom) -> bool | None:
        """Answer a question; None if what it is about is gone."""
        if atom not in self._answers:
            self._answers[atom] = self._answer(atom)
        return self._answers[atom]

    def _answer(self, atom: Atom) -> bool | None:
        package = package_of(atom.subject)
        if package not in self.tree:
            return False
        found = self._found(package)
        if found.exact and found.nearest is not None and str(atom) in found.nearest.answers:
            return found.nearest.answers[str(atom)]
        absence = self.absence(atom.subject)
        if absence is not None and absence.gone:
            return None
        return atom.holds(self.tree)

    def gone(self, atoms: Iterable[Atom]) -> list[Absence]:
        """Return what of the subjects of some questions is gone."""
        absences = {atom.subject: self.absence(atom.subject) for atom in atoms if self.ask(atom) is None}
        return [absence for absence in absences.values() if absence is not None and absence.gone]

    def lost(self, atoms: Iterable[Atom]) -> list[str]:
        """Say why some questions could be answered although what they are about is not there, as it is at the pin."""
        absences = []
        for subject in dict.fromkeys(atom.subject for atom in atoms):
            nearest = self._found(package_of(subject)).nearest
            if nearest is not None and nearest.subjects.get(subject) == THERE:
                absences.append(self.absence(subject))
        return [absence.reason for absence in absences if absence is not None]

    def absence(self, subject: str) -> Absence | None:
        """Say why a subject is not there; None if it is."""
        if subject not in self._absences:
            self._absences[subject] = self._look(subject)
        return self._absences[subject]

    def _look(self, subject: str) -> Absence | None:
        found = self._found(package_of(subject))
        nearest = found.nearest
        recorded = nearest.subjects.get(subject) if nearest is not None else None
        if nearest is not None and found.exact and recorded is not None:
            return None if recorded == THERE else Absence(subject, False, f"not there at {nearest.pin}")
        if is_there(subject, self.tree):
            return self._outside(subject, found.locks)
        if nearest is None or recorded is None:
            return Absence(subject, False, "no pin is known to have it")
        if recorded != THERE:
            return Absence(subject, False, f"not there, as at {nearest.pin}")
        moved = self._moved(subject, found.locks)
        if moved is not None:
            return Absence(subject, True, f"{subject} is gone; the same code stands at {moved}")
        return self._missing(subject, nearest, found.locks)

    def _missing(self, subject: str, nearest: Lock, locks: Sequence[Lock]) -> Absence:
        """Say whether what is not there, and the nearest pin has, is not needed, because another pin has it not."""
        module = subject.partition(":")[0]
        here = surroundings(subject, self.tree)
        unread = self.tree.read(module) is None
        alike = next((lock.pin for lock in locks if lock.subjects.get(subject) == str(here)), None)
        user = importer(module, self.tree) if alike is not None and unread else None
        if alike is not None and user is None:
            reason = f"{subject} is not there, as at {alike}: {here.place} has the same names in it"
            return Absence(subject, False, reason)
        what = f"{subject} is gone{', or its source is not available' if unread else ''}"
        still = f", and {user} still imports {module}" if user is not None else ""
        return Absence(subject, True, f"{what}: {nearest.pin} has it, {here.place} here does not{still}")

    def _outside(self, subject: str, locks: Sequence[Lock]) -> Absence | None:
        """Say if a name is imported from where the source is not to be had, and was defined at the pins."""
        if ":" not in subject:
            return None
        target = Target.parse(subject)
        origins = self.tree.origins(target)
        records = {lock.targets[target].kind for lock in locks if target in lock.targets}
        if not origins or Kind.IMPORTED.value in records or len(self.tree.chain(target)) > 1:
            return None
        return Absence(subject, True, f"{subject} is imported here, from {origins[-1].module}, which cannot be read")

    def _moved(self, subject: str, locks: Sequence[Lock]) -> Target | None:
        if ":" not in subject:
            return None
        target = Target.parse(subject)
        bodies = {lock.targets[target].outline[1:] for lock in locks if target in lock.targets}
        return elsewhere(target, bodies, self.tree)
