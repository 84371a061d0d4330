"""What each patch of a process is: its verdict, what it wrote, and how that is taken back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType

from ...errors import ApplyError, RegistryError
from ..judge.policy import WHOLE, Policy
from ..judge.verdict import Verdict
from ..patch import Action, Feature, Patch
from ..source.tree import SourceTree
from ..state import LIVE, State
from .replacement import Conventions, build, check_live, comes_from
from .slots import Binding, Slot, find_copies, find_slot, holders


class Ledger:
    """The verdicts and bindings of all patches."""

    def __init__(self, policy: Policy, conventions: Conventions, warn: Callable[[str], None]) -> None:
        self.features: Sequence[Feature] = ()
        self.verdicts: dict[str, Verdict] = {}
        self.bindings: dict[str, Binding] = {}
        """What is in force, or could not be put back, whatever is judged since."""
        self.tree = SourceTree({})
        self._leave_out = f"{policy.prefix}_DISABLE"
        self._conventions = conventions
        self._warn = warn

    def patches(self) -> Iterator[Patch]:
        """All patches of all features."""
        return (patch for feature in self.features for patch in feature)

    def live(self) -> Iterator[Patch]:
        """The patches that are wanted in this process."""
        return (patch for patch in self.patches() if self.verdicts[patch.id].state in LIVE)

    def status(self) -> dict[str, Verdict]:
        """The state of each patch by its id, read back from the live objects."""
        return {patch.id: self._observed(patch) for patch in self.patches()}

    # Applying.

    def apply(self, executed: Mapping[str, ModuleType]) -> list[BaseException]:
        """Apply what waits for the modules that have just been executed, and for those that got past our hooks.

        Each feature is applied whole or not at all. Return what went wrong.
        """
        modules = {**self._passed_by(executed), **executed}
        wanted = {feature: [p for p in feature if self._waits(p, modules, executed)] for feature in self.features}
        bindings: dict[Feature, list[Binding]] = {feature: [] for feature, patches in wanted.items() if patches}
        failures: dict[Feature, BaseException] = {}
        for feature, made in bindings.items():
            for patch in wanted[feature]:
                try:
                    made.append(self._binding(patch, modules[patch.target.module]))
                except BaseException as error:
                    failures[feature] = error
                    self._fail(feature, patch, error)
                    break
        sound = [feature for feature in bindings if feature not in failures]
        fresh = [binding for feature in sound for binding in bindings[feature] if not binding.writes]
        copies = find_copies(fresh, holders(modules, executed), self.tree) if fresh else {}
        for feature in sound:
            for binding in bindings[feature]:
                try:
                    self._write(binding, copies.get(binding.patch.id, ()))
                except BaseException as error:
                    failures[feature] = error
                    self._fail(feature, binding.patch, error)
                    break
            else:
                for patch in wanted[feature]:
                    self._note(patch, State.APPLIED)
        return list(failures.values())

    def _passed_by(self, executed: Mapping[str, ModuleType]) -> dict[str, ModuleType]:
        """The modules that patches wait for and that were loaded past our hooks; those just executed left out."""
        waiting = {patch.target.module for patch in self.patches() if self.verdicts[patch.id].state is State.PENDING}
        return {name: sys.modules[name] for name in sorted(waiting - executed.keys()) if is_loaded(name)}

    def _waits(self, patch: Patch, modules: Mapping[str, ModuleType], executed: Mapping[str, ModuleType]) -> bool:
        state = self.verdicts[patch.id].state
        # What is applied is applied again only to a module that was executed again.
        again = state is State.APPLIED and patch.target.module in executed
        wanted = patch.target.module in modules and (state is State.PENDING or again)
        return wanted and patch.action is not Action.GUARD

    def _binding(self, patch: Patch, module: ModuleType) -> Binding:
        """Make what will be written, or return what is in force already. Nothing is changed."""
        slot = find_slot(module, patch.target)
        made = self.bindings.get(patch.id)
        if made is not None and made.slot == slot and made.in_force():
            # A reload executes the module in its old namespace, so a name that we added is still there.
            return made
        before = slot.read()
        if not self._is_trusted(patch, before):
            check_live(patch, slot, self.tree, module, self._conventions)
        return Binding(patch, slot, before, build(patch, before, slot, self._leave_out), earlier=made)

    def _is_trusted(self, patch: Patch, value: object) -> bool:
        """Whether the user forces the patch, or the module after which its feature goes put the object there."""
        after = next(feature.after for feature in self.features if feature.name == patch.feature)
        before_us = sys.modules.get(after) if after else None
        return self.verdicts[patch.id].forced or (before_us is not None and comes_from(value, before_us))

    def _write(self, binding: Binding, copies: Sequence[Slot]) -> None:
        """Write one patch and its copies. Raises ApplyError if the target does not hold it afterwards."""
        if binding.writes and binding.in_force():
            return
        # Noted first: what follows may be interrupted.
        self.bindings[binding.patch.id] = binding
        binding.write([binding.slot])
        binding.replace_earlier()
        binding.write(copies)
        if not binding.in_force():
            raise ApplyError(
                subject=f"patch {binding.patch.id}",
                expected=f"{binding.patch.target} to be the patch's after it was written",
                found=f"{binding.slot.read()!r}"[:200],
                fix="another package guards this attribute: load only one of the two",
            )

    def write_over(self, name: str, module: ModuleType) -> None:
        """Write the patches of features that go after `module` again, where that has overwritten them."""
        for patch in (patch for feature in self.features if feature.after == name for patch in feature):
            beneath = self.bindings.get(patch.id)
            if beneath is None or beneath.in_force() or not comes_from(beneath.slot.read(), module):
                continue
            binding = replace(beneath, before=beneath.slot.read(), writes=[], over=name, earlier=beneath)
            # Its target is somebody else's now; the copies that it rebound are still ours.
            beneath.writes = [write for write in beneath.writes if write.slot != beneath.slot]
            binding.write([binding.slot])
            self.bindings[patch.id] = binding

    def guard(self, name: str) -> None:
        """Run the guards of a module that is about to be executed."""
        for patch in self.live():
            if patch.action is Action.GUARD and patch.target.module == name:
                self._note(patch, State.APPLIED)
                patch.implementation()

    def _note(self, patch: Patch, state: State) -> None:
        self.verdicts[patch.id] = replace(self.verdicts[patch.id], state=state)

    # Taking back.

    def _fail(self, feature: Feature, failed: Patch, failure: BaseException) -> None:
        """Take a whole feature back, since applying one of its patches failed or was interrupted."""
        whole = f"since {failed.id} failed: {WHOLE}"
        before = {patch: self.verdicts[patch.id] for patch in feature if self.verdicts[patch.id].state in LIVE}
        self.take_back([patch.id for patch in feature if patch.id in self.bindings], whole)
        if not isinstance(failure, Exception):
            # Interrupted, not failed: the import that was interrupted may be tried again, and the feature with it.
            again = {patch.id: replace(known, state=State.PENDING) for patch, known in before.items()}
            self.verdicts |= {patch_id: known for patch_id, known in again.items() if patch_id not in self.bindings}
            return
        for patch in feature:
            if self.verdicts[patch.id].state in LIVE:
                self.verdicts[patch.id] = Verdict(State.OFF, f"not applied, {whole}")
        text = str(failure) if isinstance(failure, RegistryError) else f"{type(failure).__name__}: {failure}"
        if failed.id not in self.bindings:
            self.verdicts[failed.id] = Verdict(State.FAILED, text)
        self._warn(f"feature {feature.name} failed and was taken back: {text}")

    def abandon(self, reason: str) -> None:
        """Note that nobody finishes what was begun: what is not in force has failed, and may be half applied."""
        for patch in self.patches():
            if self.verdicts[patch.id].state is State.PENDING:
                self.verdicts[patch.id] = Verdict(State.FAILED, f"{reason}; it may be half applied")
        self._warn(
            f"{reason}: patches may be half applied here; start processes with spawn, or before other threads import"
        )

    def take_back(self, patch_ids: Sequence[str], reason: str) -> BaseException | None:
        """Put back what these patches wrote, newest first. Return the interruption that came meanwhile, if any."""
        interruption = None
        for patch_id in reversed(patch_ids):
            rollback = self.bindings[patch_id].restore()
            if not rollback.failed:
                del self.bindings[patch_id]
                # What somebody else has put there since is theirs: saying that it is off would be untrue.
                left = f"; left as others have overwritten it since: {', '.join(rollback.overwritten)}"
                state = State.OVERWRITTEN if rollback.overwritten else State.OFF
                self.verdicts[patch_id] = Verdict(state, reason + (left if rollback.overwritten else ""))
                if rollback.within:
                    where = ", ".join(rollback.within)
                    self._warn(f"patch {patch_id} was taken back, and what calls upstream's for it is left in {where}")
                continue
            slots = ", ".join(f"{write.slot} ({type(error).__name__}: {error})" for write, error in rollback.failed)
            still = f"{reason}; still patched, since putting back failed: {slots}"
            self.verdicts[patch_id] = Verdict(State.FAILED, still)
            self._warn(f"patch {patch_id} could not be taken back: {still}")
            errors = [error for _, error in rollback.failed if not isinstance(error, Exception)]
            interruption = interruption or next(iter(errors), None)
        return interruption

    def end(self) -> BaseException | None:
        """Take back every patch. Return the interruption that came meanwhile, if any."""
        interruption = self.take_back(tuple(self.bindings), "deactivated")
        for patch_id, verdict in self.verdicts.items():
            # What has not written anything has nothing to put back.
            if verdict.state in LIVE and patch_id not in self.bindings:
                self.verdicts[patch_id] = Verdict(State.OFF, "deactivated")
        return interruption

    # What is asked of it.

    def claims(self) -> dict[str, tuple[str, ...]]:
        """What upstream is to assign by itself, by the patch that is left to it."""
        return {
            id: known.claims for id, known in self.verdicts.items() if known.claims and known.state is State.NATIVE
        }

    def beneath(self, slot: Slot) -> object:
        """Return what a slot holds, or what it held before a patch of ours."""
        for binding in self.bindings.values():
            if binding.slot == slot and binding.in_force():
                return binding.before
        return slot.read()

    def undoing(self, place: str) -> str:
        """Return the patch of ours that may put back what upstream assigns to `place`; empty if there is none."""
        places = {target.dotted: patch.id for patch in self.live() for target in patch.undoes}
        return places.get(place, "")

    def _observed(self, patch: Patch) -> Verdict:
        verdict = self.verdicts[patch.id]
        binding = self.bindings.get(patch.id)
        if verdict.state is State.APPLIED and binding is not None:
            if not (binding.in_force() or binding.within()):
                reason = f"overwritten since by {binding.slot.read()!r}"[:300]
                return replace(verdict, state=State.OVERWRITTEN, reason=reason)
            return replace(verdict, reason="; ".join(filter(None, [verdict.reason, *binding.remarks()])))
        if verdict.state is State.PENDING and is_loaded(patch.target.module):
            return replace(
                verdict,
                state=State.FAILED,
                reason=f"{patch.target.module} was loaded without being seen by the import hooks",
            )
        return verdict


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
