"""The verdict on each patch: is its target what the patch was written for? Reads source only, changes nothing.

`Evidence` is all that a source tree tells of one patch, and `TABLE` what follows from it: the first row that fits is
the verdict. A question that a patch asks is answered from the lock where the tree is a pin, and looked up where it is
not.
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
    """The state of one patch, and why: as verification finds it, and later as it is in this process."""

    state: State
    reason: str
    expected: str = ""
    found: str = ""
    forced: bool = False
    """Whether the target drifted and the user has the patch applied all the same."""
    in_words: bool = False
    """Whether the target drifted in words only: what it does is what the patch was written for."""
    claims: tuple[str, ...] = ()
    """What upstream means to assign by itself, by its full dotted names, so that the patch is left to it."""
    seen: bool = False
    """Whether all of that was read back in this process."""
    bypassed: bool = False
    """Whether upstream may run without the patch at some places, which the reason names."""
    unreached: bool = False
    """Whether nothing of upstream calls the target any more."""


def judge(
    features: Iterable[Feature], upstreams: Sequence[Upstream], tree: SourceTree, locks: Mapping[str, Sequence[Lock]]
) -> tuple[dict[str, Revision], dict[str, Verdict]]:
    """Verify all patches against `tree`: the revision of each upstream, and the verdict on each patch by its id.

    Raises SourceError for an upstream without source.
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
            # The whole feature would do nothing.
            verdicts |= {id: _of_no_use(one) for id, one in wanted.items()}
    return revisions, verdicts


def _of_no_use(verdict: Verdict) -> Verdict:
    return replace(verdict, state=State.DRIFTED, expected="a call of the target, as at the pin", found="none")


def verify(patch: Patch, answers: Answers) -> Verdict:
    """Judge `patch` by the first row of the table that fits what the source tells of it."""
    evidence = Evidence(patch, answers)
    return next(verdict for verdict in (row(evidence) for row in TABLE) if verdict is not None)


class Answers:
    """The answers to the questions of the patches, and which of their subjects are not there, for one tree."""

    def __init__(self, tree: SourceTree, known: Mapping[str, Baseline]) -> None:
        """`known` has the baseline of each top-level package."""
        self.tree = tree
        self.known = known
        self._answers: dict[Atom, bool | None] = {}
        self._absences: dict[str, Absence | None] = {}

    def ask(self, atom: Atom) -> bool | None:
        """Answer a question; None if what it is about is gone, or cannot be read."""
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
        """Say why a subject is not there; None if it is."""
        if subject not in self._absences:
            self._absences[subject] = look(subject, self.known[package_of(subject)], self.tree)
        return self._absences[subject]


class Evidence:
    """All that a source tree tells of one patch."""

    def __init__(self, patch: Patch, answers: Answers) -> None:
        self.patch = patch
        self.tree = answers.tree
        self.known = answers.known[patch.target.package]
        self.adds = patch.action is Action.ADD
        self._answers = answers

    @cached_property
    def absence(self) -> Absence | None:
        """Why the target, or the module of an addition, is not there."""
        return self._answers.absence(self.patch.target.module if self.adds else str(self.patch.target))

    @cached_property
    def is_gone(self) -> bool:
        """Whether the target is not there and should be."""
        return self.absence is not None and self.absence.gone

    @cached_property
    def is_outside(self) -> bool:
        """Whether the part of the upstream that would have the target is not installed here."""
        return not self.tree.has_part(str(self.patch.target), self.known.packages[0])

    def ask(self, atom: Atom) -> bool | None:
        """Answer a question of the patch."""
        if self.adds and atom.subject == str(self.patch.target):
            # That the target of an addition is not there is no loss.
            return atom.holds(self.tree)
        answer = self._answers.ask(atom)
        # Code that was renamed is not mentioned under its old name either: a no says nothing then.
        return None if answer is False and self.is_gone and self.known.needs(self.patch) else answer

    def _shown(self, atom: Atom) -> bool | None:
        """The answer if it shows that a patch is not needed, and None if it does not.

        A yes shows it if the question is sound, since what is done can be read. A no shows it only of a closed
        question: code can do the same in many ways. Either shows it if the subject is, by its form in a lock, what it
        is at a pin that answers so.
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
        """Whether upstream does it itself, by what its source answers; None if that cannot be told."""
        return self.patch.retired_by.answer(self.ask)

    @cached_property
    def is_shown_native(self) -> bool:
        """Whether upstream does it itself, by answers that are evidence."""
        return bool(self.patch.retired_by.answer(self._shown)) and not self._is_gutted(Standing.NATIVE)

    @cached_property
    def seems_absent(self) -> bool:
        """Whether there is nothing to patch, by what the source answers."""
        return self.patch.requires is not None and self.patch.requires.answer(self.ask) is False

    @cached_property
    def is_shown_absent(self) -> bool:
        """Whether there is nothing to patch, by answers that are evidence."""
        requires = self.patch.requires
        return requires is not None and requires.answer(self._shown) is False and not self._is_gutted(Standing.ABSENT)

    def _is_gutted(self, standing: Standing) -> bool:
        """Whether the target is there and does nothing, and does something at every pin of that standing."""
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
        """The places that upstream means to assign by itself, if these retire the patch."""
        atoms = self.patch.retired_by.atoms()
        return tuple(dict.fromkeys(a.place for a in atoms if isinstance(a, Assigns) and self.ask(a)))

    @cached_property
    def gone(self) -> Sequence[Absence]:
        """What is gone of the target, and of the subjects of the questions that cannot be answered."""
        unanswered = dict.fromkeys(atom.subject for atom in self.patch.atoms() if self.ask(atom) is None)
        found = [self.absence, *map(self._answers.absence, unanswered)]
        return [absence for absence in found if absence is not None and absence.gone]

    def lost(self, atoms: Iterable[Atom]) -> list[str]:
        """Say why some questions could be answered although their subjects are not there, as they are at the pin."""
        reasons = []
        for subject in dict.fromkeys(atom.subject for atom in atoms):
            nearest = self._answers.known[package_of(subject)].nearest
            absence = self._answers.absence(subject)
            if nearest is not None and nearest.subjects.get(subject) == THERE and absence is not None:
                reasons.append(absence.reason)
        return reasons

    @cached_property
    def unread(self) -> str:
        """Why a question could not be answered although its subject is there; empty if that is not so."""
        unread = (atom.unread(self.tree) for atom in self.patch.retired_by.atoms())
        return "; ".join(dict.fromkeys(filter(None, unread)))

    @cached_property
    def lacking(self) -> tuple[Collaborator, Found] | None:
        """The first collaborator that is not what it is at a pin, and what stands in its place."""
        return next(((use, found) for use in self.patch.uses if (found := self._lacks(use)) is not None), None)

    def _lacks(self, use: Collaborator) -> Found | None:
        # What the nearest pin does not have either is no loss, and neither is what may be missing.
        known = self._answers.known[use.package]
        before = known.nearest.uses.get(use.text) if known.nearest is not None else None
        if not before or not self.tree.has_part(use.text, known.packages[0]) or known.exact:
            return None
        from ..source.used import find

        found = find(use, self.tree)
        as_before = found.fits and found.what in {lock.uses.get(use.text) for lock in known.locks}
        return None if as_before or (use.optional and not found.what) else found

    @cached_property
    def put_over(self) -> str:
        """The package above the target whose `__init__` puts something in its place."""
        from .reach import put_over

        return "" if self.known.exact or self.adds else put_over(self.patch.target, self.tree)

    @cached_property
    def reach(self) -> Reach:
        """What became of the sites from which the target is reached at the nearest pin."""
        from .reach import reach

        return reach(self.patch.target, self.known, self.tree)

    def verified(self, reason: str) -> Verdict:
        """The verdict on a patch that fits, with what is to be said of the sites that reach its target."""
        remarks = list(self.reach.remarks())
        return Verdict(
            State.PENDING,
            "; ".join([reason, *remarks]),
            bypassed=bool(remarks),
            unreached=not self.reach.is_reached,
        )

    @cached_property
    def observed(self) -> Record:
        """The target as it stands here."""
        return Record.of(self.patch.target, self.tree)

    @cached_property
    def needed(self) -> Mapping[str, Record]:
        """The target as it stands at each pin at which the patch is needed."""
        target, id = self.patch.target, self.patch.id
        locks = (lock for lock in self.known.locks if lock.patches.get(id) is Standing.NEEDED)
        return {lock.pin: lock.targets[target] for lock in locks if target in lock.targets}

    @cached_property
    def alike(self) -> Mapping[str, Record]:
        """Of these, the ones where it is bound, and called, as it is here."""
        if self.patch.action is Action.GUARD:
            # It is called before the target is there, and asks nothing of it.
            return {pin: record for pin, record in self.needed.items() if record.kind == self.observed.kind}
        return {
            pin: record
            for pin, record in self.needed.items()
            if record.ends == self.observed.ends and fits(self.observed.signature, record.signature, self.restated)
        }

    @cached_property
    def restated(self) -> frozenset[str]:
        """The parameters to which a wrapper gives defaults itself: upstream's own are then not asked."""
        if self.patch.action is not Action.WRAP:
            return frozenset()
        parameters = inspect.signature(self.patch.implementation).parameters.values()
        return frozenset(p.name for p in parameters if p.default is not inspect.Parameter.empty)


# The table.


def _not_installed(e: Evidence) -> Verdict | None:
    """The part of the upstream that would have the target is not installed."""
    fits = e.is_outside and e.absence is not None and not e.is_gone
    return Verdict(State.ABSENT, e.absence.reason) if fits and e.absence is not None else None


def _done_by_upstream(e: Evidence) -> Verdict | None:
    """Upstream does it in its own code."""
    if not e.is_shown_native or e.claims:
        return None
    reasons = [f"{e.patch.retired_by}", *e.lost(e.patch.retired_by.atoms())]
    return Verdict(State.NATIVE, "; ".join(reasons))


def _patched_by_upstream(e: Evidence) -> Verdict | None:
    """Upstream means to patch it by itself, and has it here."""
    fits = e.is_shown_native and e.absence is None
    reason = f"upstream means to patch it by itself: {e.patch.retired_by}"
    return Verdict(State.NATIVE, reason, claims=e.claims) if fits else None


def _patched_nowhere(e: Evidence) -> Verdict | None:
    """Upstream means to patch by itself what is not there."""
    if not e.is_shown_native or e.absence is None:
        return None
    if not e.absence.gone:
        return Verdict(State.ABSENT, e.absence.reason)
    return Verdict(
        State.FAILED,
        f"{e.absence.reason}; upstream means to patch it by itself",
        expected=f"{e.patch.target}, which upstream means to patch by itself",
        found=e.absence.reason,
        claims=e.claims,
    )


def _not_needed(e: Evidence) -> Verdict | None:
    """There is nothing to patch."""
    if not e.is_shown_absent or e.patch.requires is None:
        return None
    reasons = [f"nothing to patch: not ({e.patch.requires})", *e.lost(e.patch.requires.atoms())]
    return Verdict(State.ABSENT, "; ".join(reasons))


def _gone(e: Evidence) -> Verdict | None:
    """The target, or the subject of a question, is gone."""
    if not e.gone:
        return None
    reason = "; ".join(dict.fromkeys(missing.reason for missing in e.gone))
    pin = e.known.nearest.pin if e.known.nearest is not None else "any pin"
    return Verdict(State.DRIFTED, reason, expected=f"{e.gone[0].subject}, as at {pin}", found="no such definition")


def _not_there(e: Evidence) -> Verdict | None:
    """The target is not there, and need not be."""
    return Verdict(State.ABSENT, e.absence.reason) if e.absence is not None else None


def _untold(e: Evidence) -> Verdict | None:
    """The source does not tell whether upstream does it itself, or whether there is anything to patch."""
    asked, found = e.patch.retired_by, "code that is like no pin's, and does not show it"
    if e.seems_native is None:
        found = e.unread
        reason = f"it cannot be told whether {asked}: {found}"
    elif e.seems_native:
        reason = f"upstream may do it itself, since {asked}; but this is {found}"
    elif e.seems_absent and e.patch.requires is not None:
        asked, found = e.patch.requires, "code that is like no pin's"
        reason = f"not so here: {asked}; whether anything is left to patch cannot be told from {found}"
    else:
        return None
    return Verdict(State.DRIFTED, reason, expected=f"{asked}", found=found)


def _uses_another(e: Evidence) -> Verdict | None:
    """The patch's own code uses what is not there any more, or is another thing now."""
    if e.lacking is None:
        return None
    use, found = e.lacking
    pin = e.known.nearest.pin if e.known.nearest is not None else "any pin"
    return Verdict(
        State.DRIFTED,
        f"the patch uses {use}, and here is {found}",
        expected=f"{use}, as at {pin}",
        found=str(found),
    )


def _overwritten(e: Evidence) -> Verdict | None:
    """A package above the target puts something in its place."""
    if not e.put_over:
        return None
    reason = f"bypassed: {e.put_over} assigns {e.patch.target}"
    return Verdict(State.DRIFTED, reason, expected=f"{e.patch.target} as its module defines it", found=e.put_over)


def _added(e: Evidence) -> Verdict | None:
    """The patch adds what upstream does not have."""
    return Verdict(State.PENDING, "not defined upstream") if e.adds else None


def _as_at_the_pin(e: Evidence) -> Verdict | None:
    """The tree is a pin that has the target."""
    nearest = e.known.nearest
    if nearest is None or not e.known.exact or e.patch.target not in nearest.targets:
        return None
    return Verdict(State.PENDING, f"as at pin {nearest.pin}")


def _as_at_a_pin(e: Evidence) -> Verdict | None:
    """The target is bound and called as at a pin; for a replacement its source is the same, too."""
    for pin, record in e.alike.items():
        if not e.patch.relies_on_source:
            return e.verified(f"signature as at {pin}")
        if record.fingerprint == e.observed.fingerprint:
            return e.verified(f"fingerprint as at {pin}")
    return None


def _in_other_words(e: Evidence) -> Verdict | None:
    """The source of the target is another one, and does the same."""
    words = e.tree.words(e.patch.target) if e.alike else ""
    for pin, record in e.alike.items():
        if words == record.words and e.patch.may_skip:
            return e.verified(f"it does what it does at {pin}")
        if words == record.words:
            reason = f"it differs from {pin} in words only: {ONLY_WORDS}"
            return Verdict(State.DRIFTED, reason, record.fingerprint, e.observed.fingerprint, in_words=True)
    return None


def _may_skip_another(e: Evidence) -> Verdict | None:
    """The target is called as at a pin, and a wrapper that may skip its source skips another source than there."""
    pin = next(iter(e.alike), None) if e.patch.may_skip else None
    return e.verified(f"signature as at {pin}; it may skip what upstream changed in the target since") if pin else None


def _another(e: Evidence) -> Verdict:
    """The target is another one than at every pin."""
    called_alike = any(fits(e.observed.signature, one.signature, e.restated) for one in e.needed.values())
    # Two that are called alike are told apart by what they are bound to.
    what = "fingerprint" if e.alike else "binding" if called_alike else "signature"

    def shown(record: Record) -> str:
        return "; ".join(record.ends) if what == "binding" else getattr(record, what) or record.kind

    found = shown(e.observed) or "nothing at the end of its module"
    expected = ", ".join(sorted(f"{shown(record)} at {pin}" for pin, record in e.needed.items()))
    here = "" if what == "fingerprint" else f": {found} here, {expected}"
    return Verdict(
        State.DRIFTED,
        f"its {what} differs from that at {' and '.join(e.needed) or 'any pin'}{here}",
        expected=expected or "a pin that has this target",
        found=found,
    )


TABLE: Sequence[Callable[[Evidence], Verdict | None]] = (
    _not_installed,
    _done_by_upstream,
    _patched_by_upstream,
    _patched_nowhere,
    _not_needed,
    _gone,
    _not_there,
    _untold,
    _uses_another,
    _added,
    _as_at_the_pin,
    _overwritten,
    _as_at_a_pin,
    _in_other_words,
    _may_skip_another,
    _another,
)
"""What follows from the evidence: the first row that gives a verdict decides. The last one always does."""

ONLY_WORDS = "annotations, defaults, parameters that need not be given, names of its own variables, or log lines"
