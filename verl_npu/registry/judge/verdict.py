"""The verdict on each patch: is its target what the patch was written for? Reads source only, changes nothing.

A question that a patch asks is answered from the lock where the source is a pin's, and looked up where it is not. What
is not there is gone, or need not be there: nothing is concluded from a name that was not found.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import DriftError, SettingError
from ..patch import Action, Feature, Patch, Upstream
from ..source.definition import Kind, fits
from ..source.named import Collaborator
from ..source.probe import Ask, Assigns, Atom
from ..source.tree import SourceTree, Target, is_there, package_of, surroundings
from ..state import Standing, State
from .lock import THERE, Lock, Record, Revision, collaborators, identify

if TYPE_CHECKING:
    from ..source.used import Found

WHOLE = "a feature is applied whole or not at all"
"""Why one patch decides about the others of its feature."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The switches of a registry, as its user set them."""

    prefix: str
    """What the names of the environment variables begin with: `<prefix>_STRICT`, `_FORCE`, `_DISABLE`."""
    command: str = ""
    """The command that shows drift in detail, for the error that names it."""
    strict: bool = False
    """Drift and failure raise, in the import that meets them."""
    force: frozenset[str] = frozenset()
    """Features that are applied although they drifted; the summary is tainted."""
    disable: frozenset[str] = frozenset()
    """Features that are left out."""

    def wrong(self, known: Iterable[str]) -> Iterator[SettingError]:
        """Yield an error for each switch that names what is no feature. Such a name has no effect."""
        names = sorted(known)
        for switch, chosen in (("FORCE", self.force), ("DISABLE", self.disable)):
            unknown = sorted(chosen - set(names))
            if unknown:
                near = difflib.get_close_matches(unknown[0], names, n=1)
                yield SettingError(
                    subject=f"{self.prefix}_{switch}={','.join(sorted(chosen))}",
                    expected=f"names among {', '.join(names)}, separated by commas",
                    found=f"{', '.join(unknown)}, which has no effect",
                    fix=f"did you mean {near[0]}?" if near else "correct it or leave it out",
                )


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


def judge(
    features: Iterable[Feature], upstreams: Sequence[Upstream], tree: SourceTree, locks: Mapping[str, Sequence[Lock]]
) -> tuple[dict[str, Revision], dict[str, Verdict]]:
    """Verify all patches against `tree`: the revision of each upstream, and the verdict on each patch by its id.

    Raises SourceError for an upstream without source.
    """
    tree.refuse_compiled()
    patches = [patch for feature in features for patch in feature]
    revisions, known = baselines(patches, upstreams, tree, locks)
    answers = Answers(tree, known)
    return revisions, {patch.id: verify(patch, answers) for patch in patches}


def baselines(
    patches: Sequence[Patch], upstreams: Sequence[Upstream], tree: SourceTree, locks: Mapping[str, Sequence[Lock]]
) -> tuple[dict[str, Revision], dict[str, Baseline]]:
    """Find the revision of each upstream by its name, and the baseline of each package that it brings."""
    atoms = {str(atom): atom for patch in patches for atom in patch.atoms()}
    revisions: dict[str, Revision] = {}
    known: dict[str, Baseline] = {}
    for upstream in upstreams:
        revision, lock = Revision("", False, ()), None
        if any(package in tree for package in upstream.packages):
            own = [atom for atom in atoms.values() if package_of(atom.subject) in upstream.packages]
            uses = collaborators(patches, upstream.packages)
            revision, lock = identify(tree, locks[upstream.name], own, uses, upstream.packages[0])
        revisions[upstream.name] = revision
        known |= dict.fromkeys(
            upstream.packages, Baseline(lock, revision.exact, locks[upstream.name], upstream.packages)
        )
    return revisions, known


# What is not there.


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
    from ..source.body import importer

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
    if ":" not in subject or tree.ends(Target.parse(subject)):
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
        package = package_of(atom.subject)
        known = self.known[package]
        if package in self.tree and known.exact and known.nearest is not None:
            recorded = known.nearest.answers.get(str(atom))
            if recorded is not None:
                return recorded
        return atom.holds(self.tree) or (None if self.unread([atom]) else False)

    def evidence(self, atom: Atom, answer: bool | None) -> bool | None:
        """Return the answer if it shows that a patch is not needed, and None if it does not.

        What is done can be read; that something is not done shows nothing, and neither does a definition that does
        nothing: code can be written in many ways. It is shown if the subject is the same as at a pin that answers so.
        """
        if answer is None or self.known[package_of(atom.subject)].exact or self.absence(atom.subject) is not None:
            return answer
        told = atom.is_sound(self.tree) if answer else atom.is_closed(self.tree)
        return answer if told or self._is_as_at_a_pin(atom, answer) else None

    def _is_as_at_a_pin(self, atom: Atom, answer: bool) -> bool:
        from ..source.body import read_body

        locks = self.known[package_of(atom.subject)].locks
        alike = [lock.forms.get(atom.subject, "") for lock in locks if lock.answers.get(str(atom)) is answer]
        return bool(alike) and read_body(atom.subject, self.tree).form in alike

    def is_gutted(self, target: Target, standing: Standing, patch_id: str) -> bool:
        """Whether a target is there and does nothing, and does something at every pin of that standing."""
        known = self.known[target.package]
        if known.exact or self.absence(str(target)) is not None:
            return False
        from ..source.body import is_hollow

        if not is_hollow(str(target), self.tree):
            return False
        form = Record.of(target, self.tree)
        return not any(
            lock.patches.get(patch_id) is standing and lock.targets.get(target) == form for lock in known.locks
        )

    def unread(self, atoms: Iterable[Atom]) -> list[str]:
        """Say why some questions could not be answered although what they are about is there."""
        unread = (atom.unread(self.tree) for atom in atoms if isinstance(atom, Assigns))
        return list(dict.fromkeys(filter(None, unread)))

    def gone(self, atoms: Iterable[Atom]) -> list[Absence]:
        """Return what of the subjects of some questions is gone."""
        absences = {atom.subject: self.absence(atom.subject) for atom in atoms if self.ask(atom) is None}
        return [absence for absence in absences.values() if absence is not None and absence.gone]

    def lost(self, atoms: Iterable[Atom]) -> list[str]:
        """Say why some questions could be answered although what they are about is not there, as it is at the pin."""
        absences = []
        for subject in dict.fromkeys(atom.subject for atom in atoms):
            nearest = self.known[package_of(subject)].nearest
            if nearest is not None and nearest.subjects.get(subject) == THERE:
                absences.append(self.absence(subject))
        return [absence.reason for absence in absences if absence is not None]

    def lacks(self, use: Collaborator) -> Found | None:
        """Return what stands for a collaborator if that is not what stood there at the nearest pin or another one.

        It is None for what the nearest pin does not have either, and for what is not there and may be missing.
        """
        known = self.known[use.package]
        before = known.nearest.uses.get(use.text) if known.nearest is not None else None
        if not before or not self.tree.has_part(use.text, known.packages[0]) or known.exact:
            return None
        from ..source.used import find

        found = find(use, self.tree)
        as_before = found.fits and found.what in {lock.uses.get(use.text) for lock in known.locks}
        return None if as_before or (use.optional and not found.what) else found

    def absence(self, subject: str) -> Absence | None:
        """Say why a subject is not there; None if it is."""
        if subject not in self._absences:
            self._absences[subject] = look(subject, self.known[package_of(subject)], self.tree)
        return self._absences[subject]


# The verdict.


def verify(patch: Patch, answers: Answers) -> Verdict:
    """Judge `patch` by the answers to its questions, and by what its target was at the pins.

    Nothing is said of what is not there: if the target, or what a question is about, is gone, the patch has drifted,
    unless the answers show that upstream does it itself or that there is nothing to patch.
    """
    adds = patch.action is Action.ADD
    known = answers.known[patch.target.package]

    def ask(atom: Atom) -> bool | None:
        # That the target of an addition is not there is no loss.
        return atom.holds(answers.tree) if adds and atom.subject == str(patch.target) else answers.ask(atom)

    absence = answers.absence(patch.target.module if adds else str(patch.target))
    here = answers.tree.has_part(str(patch.target), known.packages[0])
    if not here and absence is not None and not absence.gone:
        return Verdict(State.ABSENT, absence.reason)
    lost = absence is not None and absence.gone and known.needs(patch)

    def sure(atom: Atom) -> bool | None:
        # Code that was renamed is not mentioned under its old name either: a no says nothing then.
        answer = ask(atom)
        return None if lost and answer is False else answer

    def shown(atom: Atom) -> bool | None:
        return answers.evidence(atom, sure(atom))

    def stands(standing: Standing) -> bool:
        return adds or not answers.is_gutted(patch.target, standing, patch.id)

    if patch.retired_by.answer(shown) and stands(Standing.NATIVE):
        claims = {atom.place: None for atom in patch.retired_by.atoms() if isinstance(atom, Assigns) and ask(atom)}
        if claims:
            return _claimed(patch, tuple(claims), answers)
        return Verdict(State.NATIVE, "; ".join([f"{patch.retired_by}", *answers.lost(patch.retired_by.atoms())]))
    if patch.requires is not None and patch.requires.answer(shown) is False and stands(Standing.ABSENT):
        reason = f"nothing to patch: not ({patch.requires})"
        return Verdict(State.ABSENT, "; ".join([reason, *answers.lost(patch.requires.atoms())]))
    gone = answers.gone(atom for atom in patch.atoms() if ask(atom) is None)
    if absence is not None and absence.gone:
        gone.insert(0, absence)
    if gone:
        reason = "; ".join(dict.fromkeys(missing.reason for missing in gone))
        expected = f"{gone[0].subject}, as at {known.nearest.pin if known.nearest else 'any pin'}"
        return Verdict(State.DRIFTED, reason, expected=expected, found="no such definition")
    if absence is not None:
        return Verdict(State.ABSENT, absence.reason)
    doubt = _doubt(patch, answers, sure) or _used(patch, answers)
    if doubt is not None:
        return doubt
    if adds:
        return Verdict(State.PENDING, "not defined upstream")
    if known.exact and known.nearest is not None and patch.target in known.nearest.targets:
        return Verdict(State.PENDING, f"as at pin {known.nearest.pin}")
    return _compared(patch, answers.tree, known.locks)


def _used(patch: Patch, answers: Answers) -> Verdict | None:
    """The verdict on a patch whose own code uses what is not there any more, or is another thing now."""
    for use in patch.uses:
        found = answers.lacks(use)
        if found is not None:
            nearest = answers.known[use.package].nearest
            return Verdict(
                State.DRIFTED,
                f"the patch uses {use}, and here is {found}",
                expected=f"{use}, as at {nearest.pin if nearest is not None else 'any pin'}",
                found=str(found),
            )
    return None


def _doubt(patch: Patch, answers: Answers, ask: Ask) -> Verdict | None:
    """The verdict on a patch of which the source does not tell whether it is needed."""
    retired = patch.retired_by.answer(ask)
    if retired is None:
        unread = "; ".join(answers.unread(patch.retired_by.atoms()))
        reason = f"it cannot be told whether {patch.retired_by}: {unread}"
        return Verdict(State.DRIFTED, reason, expected=f"{patch.retired_by}", found=unread)
    needless = patch.requires is not None and patch.requires.answer(ask) is False
    if not retired and not needless:
        return None
    asked = f"{patch.retired_by}" if retired else f"there is nothing to patch: not ({patch.requires})"
    found = "code that is like no pin's, and does not show it"
    return Verdict(State.DRIFTED, f"it cannot be told whether {asked}: {found}", expected=asked, found=found)


def _claimed(patch: Patch, claims: tuple[str, ...], answers: Answers) -> Verdict:
    absence = answers.absence(str(patch.target))
    if absence is None:
        return Verdict(State.NATIVE, f"upstream means to patch it by itself: {patch.retired_by}", claims=claims)
    if not absence.gone:
        return Verdict(State.ABSENT, absence.reason)
    return Verdict(
        State.FAILED,
        f"{absence.reason}; upstream means to patch it by itself",
        expected=f"{patch.target}, which upstream means to patch by itself",
        found=absence.reason,
        claims=claims,
    )


def _compared(patch: Patch, tree: SourceTree, locks: Sequence[Lock]) -> Verdict:
    """Compare the target with what it was at the pins at which the patch is needed."""
    observed = Record.of(patch.target, tree)
    needed = {
        lock.pin: lock.targets[patch.target]
        for lock in locks
        if patch.target in lock.targets and lock.patches.get(patch.id) is Standing.NEEDED
    }
    what = "fingerprint" if patch.action.relies_on_source else "signature"
    restated = _restated(patch)
    alike = [pin for pin, record in needed.items() if _is_called_alike(patch, observed, record, restated)]
    for pin in alike:
        if not patch.action.relies_on_source or observed.fingerprint == needed[pin].fingerprint:
            return Verdict(State.PENDING, f"{what} as at {pin}")
    for pin in alike:
        if tree.words(patch.target) == needed[pin].words:
            reason = f"it differs from {pin} in words only: {_ONLY_WORDS}"
            return Verdict(State.DRIFTED, reason, needed[pin].fingerprint, observed.fingerprint, in_words=True)
    # Two that are called alike are told apart by what they are bound to.
    ends = any(fits(observed.signature, record.signature, restated) for record in needed.values())
    what = "binding" if ends and not alike else what

    def shown(record: Record) -> str:
        return "; ".join(record.ends) if what == "binding" else getattr(record, what) or record.kind

    expected = dict.fromkeys(f"{shown(record)} at {pin}" for pin, record in sorted(needed.items()))
    return Verdict(
        State.DRIFTED,
        f"{what} differs from every pin at which the patch is needed",
        expected=", ".join(sorted(expected)) or "a pin that has this target",
        found=shown(observed) or "nothing at the end of its module",
    )


def _is_called_alike(patch: Patch, observed: Record, record: Record, restated: frozenset[str]) -> bool:
    """Whether a target is bound as at a pin, and takes what it took there."""
    if patch.action is Action.GUARD:
        # It is called before the target is there, and asks nothing of it.
        return observed.kind == record.kind
    return observed.ends == record.ends and fits(observed.signature, record.signature, restated)


def _restated(patch: Patch) -> frozenset[str]:
    """Return the parameters to which a wrapper gives defaults itself: upstream's own are then not asked."""
    if patch.action is not Action.WRAP:
        return frozenset()
    parameters = inspect.signature(patch.implementation).parameters.values()
    return frozenset(p.name for p in parameters if p.default is not inspect.Parameter.empty)


_ONLY_WORDS = "annotations, defaults, parameters that need not be given, names of its own variables, or log lines"


# What follows for a feature.


def settle(
    feature: Feature, verdicts: Mapping[str, Verdict], policy: Policy
) -> tuple[dict[str, Verdict], DriftError | None]:
    """The verdict on each patch of `feature` by its id, and what is wrong: the feature is refused for drift, or what
    is left to upstream is not done by it."""
    drifted = [patch for patch in feature if verdicts[patch.id].state is State.DRIFTED]
    refused = bool(drifted) and feature.name not in policy.force

    def settled(verdict: Verdict) -> Verdict:
        if verdict.state in (State.NATIVE, State.FAILED, State.ABSENT) or (refused and verdict.state is State.DRIFTED):
            return verdict
        if verdict.state is State.DRIFTED:
            return Verdict(State.PENDING, f"by force: {verdict.reason}", forced=True)
        if refused:
            return Verdict(State.OFF, f"not applied, since {drifted[0].id} drifted: {WHOLE}")
        return Verdict(State.PENDING, verdict.reason)

    if feature.name in policy.disable:
        return {patch.id: Verdict(State.OFF, f"{policy.prefix}_DISABLE") for patch in feature}, None
    statuses = {patch.id: settled(verdicts[patch.id]) for patch in feature}
    if not refused:
        return statuses, _ineffective(feature, statuses, policy)
    first = verdicts[drifted[0].id]
    fix = f"run `{policy.command} check --diff`, then install an upstream that is a pin or a newer {policy.command}"
    if all(verdicts[patch.id].in_words for patch in drifted):
        fix = f"{policy.prefix}_FORCE={feature.name} is safe here: {_ONLY_WORDS} differ, and nothing else"
    return statuses, DriftError(
        subject=f"feature {feature.name} refused, {drifted[0].target} drifted",
        expected=first.expected,
        found=first.found,
        fix=fix,
        override=f"{policy.prefix}_FORCE={feature.name}",
    )


def _ineffective(feature: Feature, statuses: Mapping[str, Verdict], policy: Policy) -> DriftError | None:
    lost = [patch for patch in feature if statuses[patch.id].state is State.FAILED]
    if not lost:
        return None
    first = statuses[lost[0].id]
    return left_undone(
        [f"feature {feature.name}, {patch.target}" for patch in lost], first.expected, first.found, policy
    )


def left_undone(targets: Sequence[str], expected: str, found: str, policy: Policy) -> DriftError:
    """The error where patches of ours are left to upstream, and it does not patch their targets."""
    more = f" and {len(targets) - 1} more" if len(targets) > 1 else ""
    return DriftError(
        subject=f"{targets[0]}{more}",
        expected=expected,
        found=found,
        fix="install the version of the patched package that this upstream was written for",
        override=f"{policy.prefix}_STRICT=0",
    )
