"""Verification: is a target what its patch was written for? Reads source only, changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..patch import Action, Patch
from ..source.probe import Assigns, Atom
from ..state import Standing, State
from .absence import Found
from .answers import Answers
from .lock import Lock, Record

__all__ = ["Verdict", "verify"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state of one patch, and why: as verification finds it, and later as it is in this process."""

    state: State
    reason: str
    expected: str = ""
    found: str = ""
    forced: bool = False
    """Whether the target drifted and the user has the patch applied all the same."""
    claims: tuple[str, ...] = ()
    """What upstream means to assign by itself, by its full dotted names, so that the patch is left to it."""


def verify(patch: Patch, answers: Answers, found: Found) -> Verdict:
    """Judge `patch` by the answers to its questions, and by what is `found` of the upstream of its target.

    Nothing is said of what is not there: if the target, or what a question is about, is gone, the patch has drifted,
    unless the answers show that upstream does it itself or that there is nothing to patch.
    """
    adds = patch.action is Action.ADD

    def ask(atom: Atom) -> bool | None:
        # That the target of an addition is not there is no loss.
        return atom.holds(answers.tree) if adds and atom.subject == str(patch.target) else answers.ask(atom)

    absence = answers.absence(patch.target.module if adds else str(patch.target))
    if patch.target.package not in answers.tree and absence is not None and not absence.gone:
        return Verdict(State.ABSENT, absence.reason)
    lost = absence is not None and absence.gone and _is_needed(patch, found.nearest)

    def sure(atom: Atom) -> bool | None:
        # Code that was renamed is not mentioned under its old name either: a no says nothing then.
        answer = ask(atom)
        return None if lost and answer is False else answer

    if patch.retired_by.answer(sure):
        claims = {atom.place: None for atom in patch.retired_by.atoms() if isinstance(atom, Assigns) and ask(atom)}
        if claims:
            return _claimed(patch, tuple(claims), answers)
        return Verdict(State.NATIVE, "; ".join([f"{patch.retired_by}", *answers.lost(patch.retired_by.atoms())]))
    if patch.requires is not None and patch.requires.answer(sure) is False:
        reason = f"nothing to patch: not ({patch.requires})"
        return Verdict(State.ABSENT, "; ".join([reason, *answers.lost(patch.requires.atoms())]))
    gone = answers.gone(atom for atom in patch.atoms() if ask(atom) is None)
    if absence is not None and absence.gone:
        gone.insert(0, absence)
    if gone:
        return Verdict(
            State.DRIFTED,
            "; ".join(dict.fromkeys(missing.reason for missing in gone)),
            expected=f"{gone[0].subject}, as at {found.nearest.pin if found.nearest else 'any pin'}",
            found="no such definition",
        )
    if absence is not None:
        return Verdict(State.ABSENT, absence.reason)
    if patch.retired_by.answer(sure) is None:
        unread = "; ".join(answers.unread(patch.retired_by.atoms()))
        return Verdict(
            State.DRIFTED,
            f"nobody can tell whether {patch.retired_by}: {unread}",
            expected=f"{patch.retired_by}",
            found=unread,
        )
    if adds:
        return Verdict(State.VERIFIED, "not defined upstream")
    if found.exact and found.nearest is not None and patch.target in found.nearest.targets:
        return Verdict(State.VERIFIED, f"as at pin {found.nearest.pin}")
    records = {lock.pin: lock.targets[patch.target] for lock in found.locks if patch.target in lock.targets}
    return _present(patch, Record.of(answers.tree.definition(patch.target)), records, found.locks)


def _claimed(patch: Patch, claims: tuple[str, ...], answers: Answers) -> Verdict:
    absence = answers.absence(str(patch.target))
    if absence is None:
        return Verdict(State.CLAIMED, f"{patch.retired_by}", claims=claims)
    if not absence.gone:
        return Verdict(State.ABSENT, absence.reason)
    return Verdict(
        State.INEFFECTIVE,
        f"{absence.reason}; upstream means to patch it by itself",
        expected=f"{patch.target}, which upstream means to patch by itself",
        found=absence.reason,
        claims=claims,
    )


def _is_needed(patch: Patch, nearest: Lock | None) -> bool:
    return nearest is not None and nearest.patches.get(patch.id) is Standing.NEEDED


def _present(patch: Patch, observed: Record, records: dict[str, Record], locks: Sequence[Lock]) -> Verdict:
    needed = {
        lock.pin: records[lock.pin]
        for lock in locks
        if lock.pin in records and lock.patches.get(patch.id) is Standing.NEEDED
    }
    what = "fingerprint" if patch.action.relies_on_source else "signature"
    for pin, record in needed.items():
        same = record == observed if patch.action.relies_on_source else _calls_alike(record, observed)
        if same:
            return Verdict(State.VERIFIED, f"{what} as at {pin}")
    expected = {f"{getattr(record, what) or record.kind} at {pin}" for pin, record in needed.items()}
    return Verdict(
        State.DRIFTED,
        f"{what} differs from every pin at which the patch is needed",
        expected=", ".join(sorted(expected)) or "a pin that has this target",
        found=getattr(observed, what) or observed.kind,
    )


def _calls_alike(record: Record, observed: Record) -> bool:
    return (record.kind, record.signature) == (observed.kind, observed.signature)
