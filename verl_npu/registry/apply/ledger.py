"""The ledger of a process: the verdict on each patch, what the patch wrote, and how to undo it."""

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
    """The verdicts on all patches, and the bindings of the patches that were applied."""

    def __init__(self, policy: Policy, conventions: Conventions, warn: Callable[[str], None]) -> None:
        self.features: Sequence[Feature] = ()
        self.verdicts: dict[str, Verdict] = {}
        self.bindings: dict[str, Binding] = {}
        """The bindings of patches that are in force, or that could not be undone. Patches that were judged again since
        are included."""
        self.tree = SourceTree({})
        self._disable_variable = f"{policy.prefix}_DISABLE"
        self._conventions = conventions
        self._warn = warn

    def patches(self) -> Iterator[Patch]:
        """Yield all patches of all features."""
        return (patch for feature in self.features for patch in feature)

    def live(self) -> Iterator[Patch]:
        """Yield the patches that are applied or will be applied."""
        return (patch for patch in self.patches() if self.verdicts[patch.id].state in LIVE)

    def status(self) -> dict[str, Verdict]:
        """Return the state of each patch, as a mapping from patch ids to states. The states are read from the live
        objects."""
        return {patch.id: self._observed(patch) for patch in self.patches()}

    # Applying.

    def apply(self, executed: Mapping[str, ModuleType]) -> list[BaseException]:
        """Apply the patches of the modules in `executed`, and of modules that were loaded without calling verl-npu's
        import hooks. Return the errors.

        Each feature is applied completely or not at all.
        """
        modules = {**self._loaded_past_hooks(executed), **executed}
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

    def _loaded_past_hooks(self, executed: Mapping[str, ModuleType]) -> dict[str, ModuleType]:
        """Return modules with pending patches, other than `executed`, that were loaded without calling verl-npu's
        import hooks."""
        waiting = {patch.target.module for patch in self.patches() if self.verdicts[patch.id].state is State.PENDING}
        return {name: sys.modules[name] for name in sorted(waiting - executed.keys()) if is_loaded(name)}

    def _waits(self, patch: Patch, modules: Mapping[str, ModuleType], executed: Mapping[str, ModuleType]) -> bool:
        state = self.verdicts[patch.id].state
        # Apply an applied patch again only to a module that was executed again.
        again = state is State.APPLIED and patch.target.module in executed
        wanted = patch.target.module in modules and (state is State.PENDING or again)
        return wanted and patch.action is not Action.GUARD

    def _binding(self, patch: Patch, module: ModuleType) -> Binding:
        """Return the binding to write for a patch, without writing it. If a binding is already in force, return that
        binding."""
        slot = find_slot(module, patch.target)
        made = self.bindings.get(patch.id)
        if made is not None and made.slot == slot and made.in_force():
            # A reload executes the module in its old namespace, so a name that we added still exists.
            return made
        before = slot.read()
        if not self._is_trusted(patch, before):
            check_live(patch, slot, self.tree, module, self._conventions)
        return Binding(patch, slot, before, build(patch, before, slot, self._disable_variable), earlier=made)

    def _is_trusted(self, patch: Patch, value: object) -> bool:
        """Return whether to patch `value` without checking it first.

        It is trusted if the user forced the patch, or if the value comes from the module named in the feature's
        `after`.
        """
        after = next(feature.after for feature in self.features if feature.name == patch.feature)
        before_us = sys.modules.get(after) if after else None
        return self.verdicts[patch.id].forced or (before_us is not None and comes_from(value, before_us))

    def _write(self, binding: Binding, copies: Sequence[Slot]) -> None:
        """Write one patch into its target and its copies. Raises ApplyError if the target then does not hold the
        patch."""
        if binding.writes and binding.in_force():
            return
        # Record it first, because the following steps may be interrupted.
        self.bindings[binding.patch.id] = binding
        binding.write([binding.slot])
        binding.replace_earlier()
        binding.write(copies)
        if not binding.in_force():
            raise ApplyError(
                subject=f"patch {binding.patch.id}",
                found=f"another package prevents changes to {binding.patch.target}: verl-npu tried to replace the "
                f"target, but its value is still {f'{binding.slot.read()!r}'[:200]}",
                fix="do not load that package in this process",
            )

    def write_over(self, name: str, module: ModuleType) -> None:
        """Apply patches again where `module` has overwritten them. Only features whose `after` attribute is `name` are
        affected."""
        for patch in (patch for feature in self.features if feature.after == name for patch in feature):
            beneath = self.bindings.get(patch.id)
            if beneath is None or beneath.in_force() or not comes_from(beneath.slot.read(), module):
                continue
            binding = replace(beneath, before=beneath.slot.read(), writes=[], over=name, earlier=beneath)
            # The target now belongs to that module, but the copies that the old binding rebound still hold its object.
            beneath.writes = [write for write in beneath.writes if write.slot != beneath.slot]
            binding.write([binding.slot])
            self.bindings[patch.id] = binding

    def guard(self, name: str) -> None:
        """Run the guard patches of a module just before the module is executed."""
        for patch in self.live():
            if patch.action is Action.GUARD and patch.target.module == name:
                self._note(patch, State.APPLIED)
                patch.implementation()

    def _note(self, patch: Patch, state: State) -> None:
        self.verdicts[patch.id] = replace(self.verdicts[patch.id], state=state)

    # Undoing.

    def _fail(self, feature: Feature, failed: Patch, failure: BaseException) -> None:
        """Undo a whole feature, because one of its patches failed or was interrupted while it was applied."""
        whole = f"because {failed.id} failed: {WHOLE}"
        before = {patch: self.verdicts[patch.id] for patch in feature if self.verdicts[patch.id].state in LIVE}
        self.take_back([patch.id for patch in feature if patch.id in self.bindings], whole)
        if not isinstance(failure, Exception):
            # It was interrupted and did not fail, so the import may be tried again, and the feature with it.
            again = {patch.id: replace(known, state=State.PENDING) for patch, known in before.items()}
            self.verdicts |= {patch_id: known for patch_id, known in again.items() if patch_id not in self.bindings}
            return
        for patch in feature:
            if self.verdicts[patch.id].state in LIVE:
                self.verdicts[patch.id] = Verdict(State.OFF, f"not applied, {whole}")
        text = str(failure) if isinstance(failure, RegistryError) else f"{type(failure).__name__}: {failure}"
        if failed.id not in self.bindings:
            self.verdicts[failed.id] = Verdict(State.FAILED, text)
        self._warn(f"feature {feature.name} failed and was undone: {text}")

    def abandon(self, reason: str) -> None:
        """Mark the pending patches as failed, because the thread that was applying them does not exist in this
        process."""
        for patch in self.patches():
            if self.verdicts[patch.id].state is State.PENDING:
                self.verdicts[patch.id] = Verdict(State.FAILED, f"{reason}; the patch may be half applied")
        self._warn(
            f"{reason}: patches may be half applied here; start processes with spawn, or before other threads import"
        )

    def take_back(self, patch_ids: Sequence[str], reason: str) -> BaseException | None:
        """Undo the writes of these patches, newest first. An exception such as KeyboardInterrupt does not stop the
        undoing, and is returned."""
        interruption = None
        for patch_id in reversed(patch_ids):
            rollback = self.bindings[patch_id].restore()
            if not rollback.failed:
                del self.bindings[patch_id]
                # What others have put there since is theirs, so it would be wrong to say that the patch is off.
                left = f"; not restored, because others have overwritten {', '.join(rollback.overwritten)} since"
                state = State.OVERWRITTEN if rollback.overwritten else State.OFF
                self.verdicts[patch_id] = Verdict(state, reason + (left if rollback.overwritten else ""))
                if rollback.within:
                    where = ", ".join(rollback.within)
                    self._warn(f"patch {patch_id} was undone, but a wrapper that now calls upstream stays in {where}")
                continue
            slots = ", ".join(f"{write.slot} ({type(error).__name__}: {error})" for write, error in rollback.failed)
            still = f"{reason}; still patched, because restoring failed: {slots}"
            self.verdicts[patch_id] = Verdict(State.FAILED, still)
            self._warn(f"patch {patch_id} could not be undone: {still}")
            errors = [error for _, error in rollback.failed if not isinstance(error, Exception)]
            interruption = interruption or next(iter(errors), None)
        return interruption

    def end(self) -> BaseException | None:
        """Undo every patch. An exception such as KeyboardInterrupt does not stop the undoing, and is returned."""
        interruption = self.take_back(tuple(self.bindings), "deactivated")
        for patch_id, verdict in self.verdicts.items():
            # A patch that wrote nothing needs no undoing.
            if verdict.state in LIVE and patch_id not in self.bindings:
                self.verdicts[patch_id] = Verdict(State.OFF, "deactivated")
        return interruption

    # Queries.

    def claims(self) -> dict[str, tuple[str, ...]]:
        """For each patch that is not applied because upstream makes the change itself, return the names that
        upstream's own code assigns."""
        return {
            id: known.claims for id, known in self.verdicts.items() if known.claims and known.state is State.NATIVE
        }

    def beneath(self, slot: Slot) -> object:
        """Return the value of a slot. If a patch is in force in the slot, return the value that the patch replaced."""
        for binding in self.bindings.values():
            if binding.slot == slot and binding.in_force():
                return binding.before
        return slot.read()

    def undoing(self, place: str) -> str:
        """Return the id of the patch that may restore `place` after upstream has assigned it, or an empty string if no
        patch may restore it."""
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
                reason=f"{patch.target.module} was loaded without the import hooks, so it is not patched",
            )
        return verdict


def is_loaded(name: str) -> bool:
    """Return whether a module is loaded in this process and has been executed completely."""
    module = sys.modules.get(name)
    if module is None:
        return False
    spec = getattr(module, "__spec__", None)
    # An object that was put there by hand instead of a module has no source to check.
    if spec is None and getattr(module, "__file__", None) is None:
        return False
    # loader_state is importlib.util's mark of a module that waits for its first use.
    return not getattr(spec, "_initializing", False) and getattr(spec, "loader_state", None) is None
