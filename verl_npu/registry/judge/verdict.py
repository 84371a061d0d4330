"""The verdict on each patch: whether its target is the one that the patch was written for. Only source is read.

`Evidence` is everything that a source tree shows about one patch. The first row of `TABLE` that fits the evidence
gives the verdict. If the tree is a pin, the lock answers the patch's questions. Otherwise the source answers them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ..patch import Action, Feature, Patch, Upstream
from ..source.definition import fits
from ..source.named import Collaborator
from ..source.probe import Assigns, Atom
from ..source.tree import SourceTree, package_of
from ..state import Standing, State
from .absence import Absence, Baseline, look
from .lock import THERE, Lock, Record, Revision, collaborators, identify

if TYPE_CHECKING:
    from ..source.used import Found
    from .reach import Reach


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state of one patch and the reason for this state. At first, both are determined from the source code, and
    later from the running process."""

    state: State
    reason: str
    expected: str = ""
    found: str = ""
    forced: bool = False
    """Whether the target has drifted, and the user forces the patch to be applied anyway."""
    only_wording: bool = False
    """Whether the target has drifted only in its wording, and still does what the patch was written for."""
    claims: tuple[str, ...] = ()
    """The full dotted names that upstream's own code should assign. If there are any, the patch is left to
    upstream."""
    seen: bool = False
    """Whether all of these assignments were found in force in this process."""
    bypassed: bool = False
    """Whether some sites in upstream may run without the patch. The reason names them."""
    unreached: bool = False
    """Whether no code in upstream calls the target any more."""


def judge(
    features: Iterable[Feature], upstreams: Sequence[Upstream], tree: SourceTree, locks: Mapping[str, Sequence[Lock]]
) -> tuple[dict[str, Revision], dict[str, Verdict]]:
    """Judge all patches against `tree`. Return the revision of each upstream, and the verdict on each patch, keyed by
    the id of the patch.

    Raises SourceError if an upstream has no source.
    """
    tree.refuse_compiled()
    patches = [patch for feature in features for patch in feature]
    atoms = {atom.id: atom for patch in patches for atom in patch.atoms()}
    revisions: dict[str, Revision] = {}
    known: dict[str, Baseline] = {}
    for upstream in upstreams:
        revision, lock = Revision("", False, ()), None
        if any(package in tree for package in upstream.packages):
            own = [atom for atom in atoms.values() if package_of(atom.subject) in upstream.packages]
            uses = collaborators(patches, upstream.packages)
            revision, lock = identify(tree, locks[upstream.name], own, uses, upstream.packages[0])
        revisions[upstream.name] = revision
        baseline = Baseline(lock, revision.exact, locks[upstream.name], upstream.packages)
        known |= dict.fromkeys(upstream.packages, baseline)
    answers = Answers(tree, known)
    verdicts = {patch.id: verify(patch, answers) for patch in patches}
    for name in {patch.feature for patch in patches}:
        wanted = {
            id: one for id, one in verdicts.items() if id.partition(".")[0] == name and one.state is State.PENDING
        }
        if all(one.unreached for one in wanted.values()):
            # The whole feature would have no effect.
            verdicts |= {id: _without_effect(one) for id, one in wanted.items()}
    return revisions, verdicts


def _without_effect(verdict: Verdict) -> Verdict:
    return replace(verdict, state=State.DRIFTED, expected="a call of the target, as at the pin", found="none")


def verify(patch: Patch, answers: Answers) -> Verdict:
    """Return the verdict on `patch` from the first row of `TABLE` that matches the evidence."""
    evidence = Evidence(patch, answers)
    return next(verdict for verdict in (row(evidence) for row in TABLE) if verdict is not None)


class Answers:
    """The answers to the questions that patches ask about one source tree, and the reasons why subjects of these
    questions are missing from the tree."""

    def __init__(self, tree: SourceTree, known: Mapping[str, Baseline]) -> None:
        """Prepare the answers from `tree`. `known` maps each top-level package to its baseline."""
        self.tree = tree
        self.known = known
        self._answers: dict[Atom, bool | None] = {}
        self._absences: dict[str, Absence | None] = {}

    def ask(self, atom: Atom) -> bool | None:
        """Return the answer to a question about the source tree, or None if the question's subject does not exist or
        cannot be read."""
        if atom not in self._answers:
            self._answers[atom] = self._answer(atom)
        return self._answers[atom]

    def _answer(self, atom: Atom) -> bool | None:
        absence = self.absence(atom.subject)
        if absence is not None and absence.gone:
            return None
        known = self.known[package_of(atom.subject)]
        recorded = known.nearest.answers.get(atom.id) if known.exact and known.nearest is not None else None
        if recorded is not None:
            return recorded
        return atom.holds(self.tree) or (None if atom.unread(self.tree) else False)

    def absence(self, subject: str) -> Absence | None:
        """Return the reason why a subject does not exist, or None if it exists."""
        if subject not in self._absences:
            self._absences[subject] = look(subject, self.known[package_of(subject)], self.tree)
        return self._absences[subject]


class Evidence:
    """Everything that a source tree shows about one patch."""

    def __init__(self, patch: Patch, answers: Answers) -> None:
        self.patch = patch
        self.tree = answers.tree
        self.known = answers.known[patch.target.package]
        self.adds = patch.action is Action.ADD
        self._answers = answers

    @cached_property
    def absence(self) -> Absence | None:
        """The reason why the target does not exist, or None if it exists. For an addition, the reason why the target's
        module does not exist."""
        return self._answers.absence(self.patch.target.module if self.adds else str(self.patch.target))

    @cached_property
    def is_gone(self) -> bool:
        """Whether the target is missing although it should exist."""
        return self.absence is not None and self.absence.gone

    @cached_property
    def is_outside(self) -> bool:
        """Whether the part of the upstream package that should contain the target is not installed."""
        return not self.tree.has_part(str(self.patch.target), self.known.packages[0])

    def ask(self, atom: Atom) -> bool | None:
        """Return the answer to one of the patch's questions, or None if there is no reliable answer."""
        if self.adds and atom.subject == str(self.patch.target):
            # The target of an addition is expected to be missing.
            return atom.holds(self.tree)
        answer = self._answers.ask(atom)
        # A renamed function is not mentioned under its old name either, so a no proves nothing then.
        return None if answer is False and self.is_gone and self.known.needs(self.patch) else answer

    def _shown(self, atom: Atom) -> bool | None:
        """Return the answer to a question if it proves that a patch is not needed, or None otherwise.

        A positive answer is conclusive if the question is sound, because the code that does what the question asks can
        be read. A negative answer is conclusive only if the question is closed, because otherwise other code could do
        the same. Both answers are conclusive if the subject has the same code as at a pin with the same answer.
        """
        answer = self.ask(atom)
        known = self._answers.known[package_of(atom.subject)]
        if answer is None or known.exact or self._answers.absence(atom.subject) is not None:
            return answer
        if atom.is_sound(self.tree) if answer else atom.is_closed(self.tree):
            return answer
        from ..source.reader import read_body

        alike = [lock.forms.get(atom.subject, "") for lock in known.locks if lock.answers.get(atom.id) is answer]
        return answer if alike and read_body(atom.subject, self.tree).form in alike else None

    @cached_property
    def seems_native(self) -> bool | None:
        """Whether upstream already contains the patch's fix, according to upstream's source, or None if the source is
        inconclusive."""
        return self.patch.retired_by.answer(self.ask)

    @cached_property
    def is_shown_native(self) -> bool:
        """Whether the patch's probe shows conclusively that upstream already contains the patch's fix."""
        return bool(self.patch.retired_by.answer(self._shown)) and not self._is_emptied(Standing.NATIVE)

    @cached_property
    def seems_absent(self) -> bool:
        """Whether there is nothing to patch, according to upstream's source."""
        return self.patch.requires is not None and self.patch.requires.answer(self.ask) is False

    @cached_property
    def is_shown_absent(self) -> bool:
        """Whether conclusive answers to the patch's questions show that there is nothing to patch."""
        requires = self.patch.requires
        return requires is not None and requires.answer(self._shown) is False and not self._is_emptied(Standing.ABSENT)

    def _is_emptied(self, standing: Standing) -> bool:
        """Return whether the target exists and does nothing, although it does something at every pin where the patch
        has `standing`."""
        if self.adds or self.known.exact or self.absence is not None:
            return False
        from ..source.reader import is_hollow

        if not is_hollow(str(self.patch.target), self.tree):
            return False
        alike = (
            lock.targets.get(self.patch.target) == self.observed
            for lock in self.known.locks
            if lock.patches.get(self.patch.id) is standing
        )
        return not any(alike)

    @cached_property
    def claims(self) -> tuple[str, ...]:
        """The names that upstream's own code assigns, according to its source. These assignments make the patch
        unnecessary."""
        atoms = self.patch.retired_by.atoms()
        return tuple(dict.fromkeys(a.place for a in atoms if isinstance(a, Assigns) and self.ask(a)))

    @cached_property
    def gone(self) -> Sequence[Absence]:
        """The names that are missing from this tree: the target itself, and each subject that must exist so that a
        question of the patch can be answered."""
        unanswered = dict.fromkeys(atom.subject for atom in self.patch.atoms() if self.ask(atom) is None)
        found = [self.absence, *map(self._answers.absence, unanswered)]
        return [absence for absence in found if absence is not None and absence.gone]

    def lost(self, atoms: Iterable[Atom]) -> list[str]:
        """Return the reasons why subjects of `atoms` are missing from this tree. Only subjects that exist at the
        nearest pin are included."""
        reasons = []
        for subject in dict.fromkeys(atom.subject for atom in atoms):
            nearest = self._answers.known[package_of(subject)].nearest
            absence = self._answers.absence(subject)
            if nearest is not None and nearest.subjects.get(subject) == THERE and absence is not None:
                reasons.append(absence.reason)
        return reasons

    @cached_property
    def unread(self) -> str:
        """The reasons not to trust the answer "no" to a question about an existing target or module. Empty if all such
        answers are reliable."""
        unread = (atom.unread(self.tree) for atom in self.patch.retired_by.atoms())
        return "; ".join(dict.fromkeys(filter(None, unread)))

    @cached_property
    def changed_collaborator(self) -> tuple[Collaborator, Found] | None:
        """The first collaborator (an upstream object that the patch's own code uses) whose definition in this tree
        matches no pin, and that definition. None if all collaborators are unchanged."""
        return next(((use, found) for use in self.patch.uses if (found := self._changed(use)) is not None), None)

    def _changed(self, use: Collaborator) -> Found | None:
        # A collaborator that the nearest pin lacks too, or that is optional, may be missing.
        known = self._answers.known[use.package]
        before = known.nearest.uses.get(use.text) if known.nearest is not None else None
        if not before or not self.tree.has_part(use.text, known.packages[0]) or known.exact:
            return None
        from ..source.used import find

        found = find(use, self.tree)
        as_before = found.fits and found.what in {lock.uses.get(use.text) for lock in known.locks}
        return None if as_before or (use.optional and not found.what) else found

    @cached_property
    def overwriting_package(self) -> str:
        """The parent package whose `__init__` replaces the target with another object, or an empty string if there is
        none."""
        from .reach import package_overwriting

        return "" if self.known.exact or self.adds else package_overwriting(self.patch.target, self.tree)

    @cached_property
    def reach(self) -> Reach:
        """How the code that uses the target differs between this tree and the nearest pin."""
        from .reach import reach

        return reach(self.patch.target, self.known, self.tree)

    def verified(self, reason: str) -> Verdict:
        """Return the verdict on a patch that fits this tree. The verdict includes remarks about the sites that use the
        patch's target."""
        remarks = list(self.reach.remarks())
        return Verdict(
            State.PENDING,
            "; ".join([reason, *remarks]),
            bypassed=bool(remarks),
            unreached=not self.reach.is_reached,
        )

    @cached_property
    def observed(self) -> Record:
        """The record that describes the target in this source tree."""
        return Record.of(self.patch.target, self.tree)

    @cached_property
    def needed(self) -> Mapping[str, Record]:
        """The target's record for each pin that needs the patch."""
        target, id = self.patch.target, self.patch.id
        locks = (lock for lock in self.known.locks if lock.patches.get(id) is Standing.NEEDED)
        return {lock.pin: lock.targets[target] for lock in locks if target in lock.targets}

    @cached_property
    def alike(self) -> Mapping[str, Record]:
        """The records in `needed` that have the same binding and signature as the target in this tree."""
        if self.patch.action is Action.GUARD:
            # A guard runs before the target exists, and does not depend on it.
            return {pin: record for pin, record in self.needed.items() if record.kind == self.observed.kind}
        return {
            pin: record
            for pin, record in self.needed.items()
            if record.ends == self.observed.ends and fits(self.observed.signature, record.signature, self.restated)
        }

    @cached_property
    def restated(self) -> frozenset[str]:
        """The parameters that have their own defaults in the wrapper. Upstream's defaults for these parameters do not
        matter."""
        if self.patch.action is not Action.WRAP:
            return frozenset()
        parameters = inspect.signature(self.patch.implementation).parameters.values()
        return frozenset(p.name for p in parameters if p.default is not inspect.Parameter.empty)


# The table.


def _not_installed(e: Evidence) -> Verdict | None:
    """The part of the upstream that should contain the target is not installed."""
    fits = e.is_outside and e.absence is not None and not e.is_gone
    return Verdict(State.ABSENT, e.absence.reason) if fits and e.absence is not None else None


def _done_by_upstream(e: Evidence) -> Verdict | None:
    """Upstream's own code has the fix."""
    if not e.is_shown_native or e.claims:
        return None
    reasons = [f"{e.patch.retired_by}", *e.lost(e.patch.retired_by.atoms())]
    return Verdict(State.NATIVE, "; ".join(reasons))


def _patched_by_upstream(e: Evidence) -> Verdict | None:
    """Upstream's own code should patch the target, and the target exists."""
    fits = e.is_shown_native and e.absence is None
    reason = f"upstream itself patches the target: {e.patch.retired_by}"
    return Verdict(State.NATIVE, reason, claims=e.claims) if fits else None


def _own_patch_has_no_target(e: Evidence) -> Verdict | None:
    """Upstream's own code should patch the target, but the target does not exist."""
    if not e.is_shown_native or e.absence is None:
        return None
    if not e.absence.gone:
        return Verdict(State.ABSENT, e.absence.reason)
    return Verdict(
        State.FAILED,
        f"{e.absence.reason}, although upstream itself patches it",
        expected=f"{e.patch.target}, which upstream itself patches",
        found="no definition",
        claims=e.claims,
    )


def _not_needed(e: Evidence) -> Verdict | None:
    """There is nothing to patch."""
    if not e.is_shown_absent or e.patch.requires is None:
        return None
    reasons = [f"nothing to patch: not ({e.patch.requires})", *e.lost(e.patch.requires.atoms())]
    return Verdict(State.ABSENT, "; ".join(reasons))


def _gone(e: Evidence) -> Verdict | None:
    """The target, or the subject of a question, no longer exists."""
    if not e.gone:
        return None
    reason = "; ".join(dict.fromkeys(missing.reason for missing in e.gone))
    pin = e.known.nearest.pin if e.known.nearest is not None else "any pin"
    return Verdict(State.DRIFTED, reason, expected=f"{e.gone[0].subject}, as defined at {pin}", found="no definition")


def _absent(e: Evidence) -> Verdict | None:
    """The target does not exist, and need not exist."""
    return Verdict(State.ABSENT, e.absence.reason) if e.absence is not None else None


def _unclear(e: Evidence) -> Verdict | None:
    """The source does not show whether upstream has the fix, or whether there is anything to patch."""
    asked, found = e.patch.retired_by, "code that matches no pin and proves nothing"
    if e.seems_native is None:
        found = e.unread
        reason = f"it is unclear whether {asked}: {found}"
    elif e.seems_native:
        reason = f"upstream may have the fix, because {asked}, but its code matches no pin, so this proves nothing"
    elif e.seems_absent and e.patch.requires is not None:
        asked = e.patch.requires
        reason = f"upstream may need no patch, because its code does not show that {asked}, but matches no pin either"
    else:
        return None
    return Verdict(State.DRIFTED, reason, expected=f"proof that {asked}", found=found)


def _collaborator_changed(e: Evidence) -> Verdict | None:
    """An object that the patch's own code uses is missing, or has changed."""
    if e.changed_collaborator is None:
        return None
    use, found = e.changed_collaborator
    pin = e.known.nearest.pin if e.known.nearest is not None else "any pin"
    return Verdict(
        State.DRIFTED,
        f"the patch uses {use}, but upstream has {found}",
        expected=f"{use}, as defined at {pin}",
        found=str(found),
    )


def _overwritten(e: Evidence) -> Verdict | None:
    """A parent package of the target replaces the target with another object."""
    package = e.overwriting_package
    if not package:
        return None
    reason = f"bypassed: {package} assigns {e.patch.target}"
    found = f"another object, which {package} assigns"
    return Verdict(State.DRIFTED, reason, expected=f"{e.patch.target} as its module defines it", found=found)


def _added(e: Evidence) -> Verdict | None:
    """The patch adds something that upstream does not have."""
    return Verdict(State.PENDING, "not defined upstream") if e.adds else None


def _exactly_a_pin(e: Evidence) -> Verdict | None:
    """The source tree is a pin that has the target."""
    nearest = e.known.nearest
    if nearest is None or not e.known.exact or e.patch.target not in nearest.targets:
        return None
    return Verdict(State.PENDING, f"as at pin {nearest.pin}")


def _same_as_at_a_pin(e: Evidence) -> Verdict | None:
    """The target is bound and called as at a pin. For a replacement, the target's source is also the same."""
    for pin, record in e.alike.items():
        if not e.patch.relies_on_source:
            return e.verified(f"signature as at {pin}")
        if record.fingerprint == e.observed.fingerprint:
            return e.verified(f"fingerprint as at {pin}")
    return None


def _reworded(e: Evidence) -> Verdict | None:
    """The source of the target is different, but does the same."""
    words = e.tree.words(e.patch.target) if e.alike else ""
    for pin, record in e.alike.items():
        if words == record.words and e.patch.may_skip:
            return e.verified(f"the target does the same as at {pin}")
        if words == record.words:
            reason = f"the target differs from {pin} only in wording: {ONLY_WORDS}"
            return Verdict(State.DRIFTED, reason, record.fingerprint, e.observed.fingerprint, only_wording=True)
    return None


def _may_skip_changes(e: Evidence) -> Verdict | None:
    """The target is called as at a pin, but its source has changed, and the wrapper may skip the changed code."""
    pin = next(iter(e.alike), None) if e.patch.may_skip else None
    if pin is None:
        return None
    return e.verified(f"signature as at {pin}; the patch may skip changes that upstream has made since")


def _different(e: Evidence) -> Verdict:
    """No pin has the target as it is here."""
    called_alike = any(fits(e.observed.signature, one.signature, e.restated) for one in e.needed.values())
    # If two records are called alike, the difference is in what they are bound to.
    what = "fingerprint" if e.alike else "binding" if called_alike else "signature"

    def shown(record: Record) -> str:
        return "; ".join(record.ends) if what == "binding" else getattr(record, what) or record.kind

    found = shown(e.observed) or "no binding at the end of its module"
    expected = ", ".join(sorted(f"{shown(record)} at {pin}" for pin, record in e.needed.items()))
    here = "" if what == "fingerprint" else f": {found} here, {expected}"
    return Verdict(
        State.DRIFTED,
        f"the target's {what} differs from {' and '.join(e.needed) or 'any pin'}{here}",
        expected=expected or "a pin that has this target",
        found=found,
    )


TABLE: Sequence[Callable[[Evidence], Verdict | None]] = (
    _not_installed,
    _done_by_upstream,
    _patched_by_upstream,
    _own_patch_has_no_target,
    _not_needed,
    _gone,
    _absent,
    _unclear,
    _collaborator_changed,
    _added,
    _exactly_a_pin,
    _overwritten,
    _same_as_at_a_pin,
    _reworded,
    _may_skip_changes,
    _different,
)
"""The rows of the table. The first row that returns a verdict decides, and the last row always returns one."""

ONLY_WORDS = "annotations, defaults, optional parameters, names of local variables, or log lines"
