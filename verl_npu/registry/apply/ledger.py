"""What each patch of a process is: its verdict, what it wrote, and how that is taken back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType

from ...errors import VerlNpuError
from ..judge.verdict import WHOLE, Verdict
from ..patch import Feature, Patch
from ..state import LIVE, FeatureEntry, State, feature_state
from .slots import Binding, Rollback, Slot

_BEGUN = (State.REGISTERED, State.VERIFIED)
"""The states of a patch that is still being judged."""


class Ledger:
    """The verdicts and bindings of all patches."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self.features: Sequence[Feature] = ()
        self.verdicts: dict[str, Verdict] = {}
        self.bindings: dict[str, Binding] = {}
        self.upstreams_own: Callable[[str], Verdict | None] = lambda place: None
        """What became in this process of what upstream assigns by itself to a place, if it has been reached."""
        self._warn = warn

    def forget(self) -> None:
        """Forget what was judged. What is in force, or could not be put back, is not forgotten."""
        self.features = ()
        self.verdicts = {}

    def patches(self) -> Iterator[Patch]:
        """All patches of all features."""
        return (patch for feature in self.features for patch in feature)

    def status(self) -> dict[str, Verdict]:
        """The state of each patch by its id, read back from the live objects."""
        return {patch.id: self._observed(patch) for patch in self.patches()}

    def states(self) -> dict[str, State]:
        """The state of each feature by its name."""
        status = self.status()
        return {f.name: feature_state(status[patch.id].state for patch in f) for f in self.features}

    def entries(self) -> dict[str, FeatureEntry]:
        """What became of each feature and its patches, as plain data."""
        status = self.status()
        return {
            feature.name: {
                "owner": feature.owner,
                "state": str(feature_state(status[patch.id].state for patch in feature)),
                "patches": {
                    patch.id: {
                        "target": str(patch.target),
                        "state": str(status[patch.id].state),
                        "reason": status[patch.id].reason,
                    }
                    for patch in feature
                },
            }
            for feature in self.features
        }

    def fail(self, feature: Feature, failed: Patch, failure: BaseException) -> None:
        """Take a whole feature back, since applying one of its patches failed or was interrupted."""
        whole = f"since {failed.id} failed: {WHOLE}"
        before = {patch.id: self.verdicts[patch.id] for patch in feature}
        self.take_back([patch.id for patch in feature if patch.id in self.bindings], whole)
        if not isinstance(failure, Exception):
            # Interrupted, not failed: the import that was interrupted may be tried again, and the feature with it.
            for patch_id, verdict in before.items():
                if patch_id not in self.bindings and verdict.state in LIVE:
                    self.verdicts[patch_id] = replace(verdict, state=State.PENDING)
            return
        for patch in feature:
            if self.verdicts[patch.id].state in LIVE:
                self.verdicts[patch.id] = Verdict(State.VERIFIED, f"not applied, {whole}")
        text = str(failure) if isinstance(failure, VerlNpuError) else f"{type(failure).__name__}: {failure}"
        if failed.id not in self.bindings:
            self.verdicts[failed.id] = Verdict(State.FAILED, text)
        self._warn(f"feature {feature.name} failed and was taken back: {text}")

    def abandon(self, reason: str) -> None:
        """Note that nobody finishes what was begun: what is not in force has failed, and may be half applied."""
        for patch in self.patches():
            if patch.id not in self.bindings and self.verdicts[patch.id].state in (*LIVE, *_BEGUN):
                self.verdicts[patch.id] = Verdict(State.FAILED, f"{reason}; it may be half applied")
        self._warn(
            f"{reason}: patches may be half applied here; start processes with spawn, or before other threads import"
        )

    def take_back(self, patch_ids: Sequence[str], reason: str) -> BaseException | None:
        """Put back what these patches wrote, newest first. Return the interruption that came meanwhile, if any."""
        interruption = None
        for patch_id in reversed(patch_ids):
            rollback = self.bindings[patch_id].restore()
            self.verdicts[patch_id] = _after_rollback(rollback, reason)
            if not rollback.failed:
                del self.bindings[patch_id]
                continue
            self._warn(f"patch {patch_id} could not be taken back: {self.verdicts[patch_id].reason}")
            errors = [error for _, error in rollback.failed if not isinstance(error, Exception)]
            interruption = interruption or next(iter(errors), None)
        return interruption

    def overlooked(self, executed: Mapping[str, ModuleType]) -> dict[str, ModuleType]:
        """The modules that patches wait for and that were loaded past our hooks; those just executed left out."""
        waiting = {patch.target.module for patch in self.patches() if self.verdicts[patch.id].state is State.PENDING}
        return {name: sys.modules[name] for name in sorted(waiting - executed.keys()) if is_loaded(name)}

    def claims(self) -> dict[str, tuple[str, ...]]:
        """What upstream is to assign by itself, by the patch that is left to it."""
        return {p.id: self.verdicts[p.id].claims for p in self.patches() if self.verdicts[p.id].state is State.CLAIMED}

    def beneath(self, slot: Slot) -> object:
        """Return what a slot holds, or what it held before a patch of ours."""
        for binding in self.bindings.values():
            if binding.slot == slot and binding.in_force():
                return binding.before
        return slot.read()

    def targets_in_force(self) -> set[str]:
        """The targets that our patches are applied to, or will be."""
        return {str(patch.target) for patch in self.patches() if self.verdicts[patch.id].state in LIVE}

    def undoing(self, place: str) -> str:
        """Return the patch of ours that may put back what upstream assigns to `place`; empty if there is none."""
        live = (patch for patch in self.patches() if self.verdicts[patch.id].state in LIVE)
        return next((patch.id for patch in live if place in (target.dotted for target in patch.undoes)), "")

    def _observed(self, patch: Patch) -> Verdict:
        verdict = self.verdicts[patch.id]
        if verdict.state is State.CLAIMED:
            return self._left_to_upstream(verdict)
        binding = self.bindings.get(patch.id)
        if verdict.state is State.APPLIED and binding is not None:
            if not binding.in_force():
                reason = f"overwritten since by {binding.slot.read()!r}"[:300]
                return replace(verdict, state=State.SHADOWED, reason=reason)
            return replace(verdict, reason="; ".join(filter(None, [verdict.reason, *binding.remarks()])))
        if verdict.state is State.PENDING and is_loaded(patch.target.module):
            return replace(
                verdict,
                state=State.MISSED,
                reason=f"{patch.target.module} was loaded without being seen by the import hooks",
            )
        return verdict

    def _left_to_upstream(self, verdict: Verdict) -> Verdict:
        found = [self.upstreams_own(place) for place in verdict.claims]
        reached = [own for own in found if own is not None]
        other = next((own for own in reached if own.state is not State.SEEN), None)
        if other is not None:
            return replace(verdict, state=other.state, reason=other.reason)
        return replace(verdict, state=State.SEEN) if reached and len(reached) == len(found) else verdict


def _after_rollback(rollback: Rollback, reason: str) -> Verdict:
    if rollback.failed:
        slots = ", ".join(f"{write.slot} ({type(error).__name__}: {error})" for write, error in rollback.failed)
        return Verdict(State.FAILED, f"{reason}; still patched, since putting back failed: {slots}")
    if rollback.overwritten:
        # What somebody else has put there since is theirs: saying "rolled back" of it would be untrue.
        return Verdict(
            State.SHADOWED,
            f"{reason}; left as others have overwritten it since: {', '.join(map(str, rollback.overwritten))}",
        )
    return Verdict(State.ROLLED_BACK, reason)


def is_loaded(name: str) -> bool:
    """Whether a module has been executed to its end in this process."""
    module = sys.modules.get(name)
    if module is None:
        return False
    spec = getattr(module, "__spec__", None)
    # What was put there by hand, in the place of a module, has no source that could be checked.
    if spec is None and getattr(module, "__file__", None) is None:
        return False
    # The second is importlib.util's mark of a module that waits for its first use.
    return not getattr(spec, "_initializing", False) and getattr(spec, "loader_state", None) is None
