"""Verification: is a target what its patch was written for? Reads source only, changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..patch import Action, Patch
from ..source.tree import SourceTree
from ..state import Standing, State
from .lock import Lock, Record, standing
from .revision import Revision

__all__ = ["Verdict", "verify"]

_STATE_OF = {Standing.NATIVE: State.NATIVE, Standing.ABSENT: State.ABSENT}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state of one patch, and why: as verification finds it, and later as it is in this process."""

    state: State
    reason: str
    expected: str = ""
    found: str = ""
    forced: bool = False
    """Whether the target drifted and the user has the patch applied all the same."""


def verify(patch: Patch, tree: SourceTree, revision: Revision, locks: Sequence[Lock]) -> Verdict:
    """Judge `patch` against `tree`, whose target package belongs to the upstream that `locks` are of."""
    exact = next((lock for lock in locks if revision.exact and lock.pin == revision.nearest_pin), None)
    if exact is not None and patch.id in exact.patches and _locked_alone(patch):
        return _by_standing(patch, exact.patches[patch.id], f"pin {exact.pin}")

    now = standing(patch, tree)
    if now is Standing.NATIVE:
        return Verdict(State.NATIVE, f"{patch.retired_by}")
    if not _required(patch, tree):
        return Verdict(State.ABSENT, f"nothing to patch: not ({patch.requires})")
    if patch.target.package not in tree:
        return Verdict(State.ABSENT, f"{patch.target.package} is not installed here")
    records = {lock.pin: lock.targets[patch.target] for lock in locks if patch.target in lock.targets}
    if now is Standing.ABSENT:
        return _absent(patch, tree, records)
    return _present(patch, Record.of(tree.definition(patch.target)), records, locks)


def _required(patch: Patch, tree: SourceTree) -> bool:
    if patch.requires is None or patch.requires.holds(tree):
        return True
    # "There is nothing to patch" cannot be said of a module that is gone: what it did may be done elsewhere now.
    module = patch.target.module
    return module in patch.requires.modules() and tree.read(module) is None


def _locked_alone(patch: Patch) -> bool:
    # A probe that asks another upstream is answered anew: a lock knows its own upstream only.
    return all(module.partition(".")[0] == patch.target.package for module in patch.probed_modules())


def _by_standing(patch: Patch, recorded: Standing, where: str) -> Verdict:
    if recorded is Standing.NEEDED:
        return Verdict(State.VERIFIED, f"as at {where}")
    reason = f"{patch.retired_by}" if recorded is Standing.NATIVE else f"not there at {where}"
    return Verdict(_STATE_OF[recorded], reason)


def _absent(patch: Patch, tree: SourceTree, records: dict[str, Record]) -> Verdict:
    without = sorted(pin for pin, record in records.items() if record == Record())
    if without:
        return Verdict(State.ABSENT, f"not there, as at {', '.join(without)}")
    missing = str(patch.target) if tree.read(patch.target.module) is not None else patch.target.module
    return Verdict(
        State.DRIFTED,
        f"{missing} is gone, or its source is not available",
        expected=f"as at {', '.join(sorted(records)) or 'any pin'}",
        found="no source",
    )


def _present(patch: Patch, observed: Record, records: dict[str, Record], locks: Sequence[Lock]) -> Verdict:
    if patch.action is Action.ADD:
        return Verdict(State.VERIFIED, "not defined upstream")
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
