"""The answers to the questions of the patches, for one tree: recorded where its source is a pin's, else looked up."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..source.presence import package_of
from ..source.probe import Assigns, Atom
from ..source.tree import SourceTree
from .absence import Absence, Found, look
from .lock import THERE

__all__ = ["Answers"]


class Answers:
    """Answers atoms, and says whether subjects are there, for one tree."""

    def __init__(self, tree: SourceTree, found: Callable[[str], Found]) -> None:
        """`found` gives what is known of the upstream that brings a top-level package."""
        self.tree = tree
        self._found = found
        self._answers: dict[Atom, bool | None] = {}
        self._absences: dict[str, Absence | None] = {}

    def ask(self, atom: Atom) -> bool | None:
        """Answer a question; None if what it is about is gone, or cannot be read."""
        if atom not in self._answers:
            self._answers[atom] = self._answer(atom)
        return self._answers[atom]

    def _answer(self, atom: Atom) -> bool | None:
        found = self._found(package_of(atom.subject))
        absence = self.absence(atom.subject)
        if absence is not None and absence.gone:
            return None
        if package_of(atom.subject) in self.tree and found.exact and found.nearest is not None:
            recorded = found.nearest.answers.get(str(atom))
            return self._read(atom) if recorded is None else recorded
        return self._read(atom)

    def _read(self, atom: Atom) -> bool | None:
        return atom.holds(self.tree) or (None if self._unread(atom) else False)

    def _unread(self, atom: Atom) -> str:
        return atom.unread(self.tree) if isinstance(atom, Assigns) else ""

    def unread(self, atoms: Iterable[Atom]) -> list[str]:
        """Say why some questions could not be answered although what they are about is there."""
        return list(dict.fromkeys(filter(None, map(self._unread, atoms))))

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
            self._absences[subject] = look(subject, self._found(package_of(subject)), self.tree)
        return self._absences[subject]
