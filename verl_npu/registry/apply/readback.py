"""Upstream's own patches, read back in this process after they ran: in force, or assigned to nothing that is used."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

from ...errors import DriftError, SourceError
from ..judge.verdict import Policy, Verdict, left_undone
from ..source.named import PatchModule
from ..source.tree import SourceTree
from ..state import NativeEntry, State
from . import hooks
from .ledger import Ledger, is_loaded
from .replacement import belongs
from .slots import MISSING, Slot, namespace, pass_through, slot_of

if TYPE_CHECKING:
    from ..judge.natives import Native
    from ..source.assignments import Step


class Readback:
    """What upstream's patch modules did in this process."""

    def __init__(
        self,
        modules: Sequence[PatchModule],
        ledger: Ledger,
        policy: Policy,
        warn: Callable[[str], None],
        changed: Callable[[], None],
    ) -> None:
        self._modules = modules
        self._ledger = ledger
        self._policy = policy
        self._warn = warn
        self._changed = changed
        self._tree = SourceTree({})
        self._failed: dict[PatchModule, str] = {}
        self._given_up: dict[PatchModule, list[Native]] = {}
        self._natives: dict[str, Native] = {}
        self._told: set[str] = set()
        self._wrappers: list[tuple[Slot, object, object]] = []
        self._hooks: list[tuple[str, Callable[[ModuleType], None]]] = []

    def watch(self, tree: SourceTree) -> None:
        """Read back after each of the modules was imported, and after their functions were called."""
        self._tree = tree
        for module in self._modules:
            for hook, before in ((self._starts, True), (self._imported, False)):
                placed = functools.partial(hook, module)
                self._hooks.append((module.name, placed))
                hooks.add_hook(module.name, placed, before=before)

    def release(self) -> None:
        """Take away what `watch` put there. Repeating it does nothing."""
        for name, hook in self._hooks:
            hooks.remove_hook(name, hook)
        self._hooks.clear()
        for slot, wrapper, original in self._wrappers:
            if slot.read() is wrapper:
                slot.write(original)
            pass_through(wrapper, original)
        self._wrappers.clear()
        self._failed.clear()
        self._given_up.clear()
        self._natives.clear()
        self._told.clear()

    def settled(self, verdict: Verdict) -> Verdict:
        """Say what became of a patch that is left to what upstream assigns; any other verdict stays."""
        if verdict.state is not State.NATIVE or not verdict.claims:
            return verdict
        reached = self._reached()
        found = [self._observed(reached[place]) for place in verdict.claims if place in reached]
        other = next((own for own in found if not own.seen), None)
        if other is not None:
            return replace(verdict, state=other.state, reason=other.reason)
        if len(found) < len(verdict.claims):
            return verdict
        return replace(verdict, seen=True, reason="; ".join(dict.fromkeys(own.reason for own in found)))

    def entries(self) -> dict[str, NativeEntry]:
        """What became of each assignment that was reached, by its target, as plain data."""
        ours = {str(patch.target) for patch in self._ledger.live()}
        entries: dict[str, NativeEntry] = {}
        for native in self._reached().values():
            # Of what a patch of ours lies over, upstream's does not matter any more.
            if native.target not in ours:
                verdict = self._observed(native)
                entries[native.target] = {"by": native.by, "state": str(verdict.state), "reason": verdict.reason}
        return entries

    def _reached(self) -> dict[str, Native]:
        for module in tuple(self._failed):
            if module not in self._given_up and not _is_being_executed(module.name):
                self._given_up[module] = self._lost(module)
        lost = (native for natives in self._given_up.values() for native in natives)
        return {**{native.step.place: native for native in lost}, **self._natives}

    def _lost(self, module: PatchModule) -> list[Native]:
        """What a module that failed assigns: nothing of it is in force unless it was read back."""
        # Imported here, as what else reads a patch module: few processes of a job import one.
        from ..judge.natives import natives_of

        return [
            native if native.state is not State.NATIVE else _stale(native, self._failed[module])
            for native in natives_of(module, self._tree_of(module))
        ]

    def _starts(self, module: PatchModule, _: ModuleType) -> None:
        # If its execution fails nothing more is heard of it, because upstream may catch what it raises.
        self._failed[module] = f"importing {module.name} failed"

    def _imported(self, module: PatchModule, executed: ModuleType) -> None:
        self._failed.pop(module, None)
        self._given_up.pop(module, None)
        contents = namespace(executed)
        for call in module.calls:
            original = contents.get(call)
            if isinstance(original, FunctionType):
                wrapper = self._watched(module, call, original)
                slot = Slot(executed, call)
                slot.write(wrapper)
                self._wrappers.append((slot, wrapper, original))
        self._read(module, "")
        for call in module.calls:
            # It may have been called before we came.
            if any(self._holds(step, executed) for step in self._steps(module, call)):
                self._read(module, call)

    def _watched(self, module: PatchModule, call: str, original: FunctionType) -> Callable[..., object]:
        @functools.wraps(original)
        def watched(*args: object, **kwargs: object) -> object:
            try:
                result = original(*args, **kwargs)
            except Exception as error:
                self._failed[module] = f"{module.name}:{call} raised {type(error).__name__}: {error}"
                self._changed()
                raise
            self._read(module, call)
            return result

        return watched

    def _read(self, module: PatchModule, call: str) -> None:
        """Read back what `module` has assigned. Raises DriftError under strict, if something is lost."""
        try:
            found = self._look(module, call)
        except SourceError as error:
            self._warn(f"{error}; what {module.name} patches by itself is not read back in this process")
            return
        for native in found:
            known = self._natives.get(native.step.place)
            if known is None or native.seen or not known.seen:
                self._natives[native.step.place] = native
        self._changed()
        drift = self._ineffective(module)
        if drift is not None:
            self._warn(str(drift))
            if self._policy.strict:
                raise drift

    def _look(self, module: PatchModule, call: str) -> list[Native]:
        from ..judge.natives import natives_of

        executed = sys.modules.get(module.name)
        if executed is None:
            return []
        tree = self._tree_of(module)
        steps = self._steps(module, call)
        held = [step for step in steps if self._holds(step, executed)]
        found = [_seen(module, step, tree) for step in held]
        # Looking for a reason may take parsing what upstream patches: only if there is something to explain.
        if any(step not in held and not step.depends for step in steps):
            judged = [native for native in natives_of(module, tree) if native.step.call == call]
            found += [self._unseen(native) for native in judged if native.step not in held]
        return found

    def _unseen(self, native: Native) -> Native:
        if native.state is not State.NATIVE:
            return native
        if native.step.depends:
            return replace(native, state=State.ABSENT, reason=f"not done here: {native.reason}")
        slot = slot_of(native.step.place)
        value = MISSING if slot is None else slot.read()
        return _stale(native, f"{native.by} ran, and {native.target} is {value!r}"[:300])

    def _observed(self, native: Native) -> Verdict:
        """What a native is now: somebody may have overwritten it since, or a patch of ours put it back."""
        executed = sys.modules.get(native.by)
        if native.seen and executed is not None and not self._holds(native.step, executed):
            undone = self._ledger.undoing(native.step.place)
            if undone:
                return Verdict(State.OFF, f"put back by {undone}")
            return Verdict(State.OVERWRITTEN, f"{native.by} assigned it, and it was overwritten since")
        return Verdict(native.state, native.reason, seen=native.seen)

    def _holds(self, step: Step, executed: ModuleType) -> bool:
        """Whether a place holds what upstream assigns to it, be it beneath a patch of ours."""
        slot = slot_of(step.place)
        return slot is not None and belongs(self._ledger.beneath(slot), step.value, executed)

    def _ineffective(self, module: PatchModule) -> DriftError | None:
        """The error if patches of ours are left to what `module` does, and it does not do it."""
        lost = {}
        for patch_id, places in self._ledger.claims().items():
            bad = [n for n in map(self._natives.get, places) if n is not None and n.state is State.FAILED]
            if bad and bad[0].by == module.name and patch_id not in self._told:
                lost[patch_id] = bad[0]
        if not lost:
            return None
        self._told.update(lost)
        natives = list(lost.values())
        expected = f"{module.name} to patch it by itself"
        return left_undone([native.target for native in natives], expected, natives[0].reason, self._policy)

    def _steps(self, module: PatchModule, call: str) -> list[Step]:
        from ..source.assignments import StepKind, read_steps

        steps = read_steps(module, self._tree_of(module))
        return [step for step in steps if step.kind is StepKind.ASSIGN and step.call == call]

    def _tree_of(self, module: PatchModule) -> SourceTree:
        """The tree, with all packages that a module patches."""
        from ..judge.natives import patched_packages

        packages = {module.name.partition(".")[0]}
        for _ in range(2):
            unknown = [package for package in sorted(packages) if not self._tree.covers(package)]
            if unknown:
                self._tree = self._tree.with_packages(SourceTree.installed(unknown))
            packages = patched_packages([module], self._tree)
        return self._tree


def _seen(module: PatchModule, step: Step, tree: SourceTree) -> Native:
    from ..judge.natives import Native, stale
    from ..source.lookup import resolve

    place = resolve(step.place, tree)
    native = Native(place.name, module.name, step, State.NATIVE, f"{module.name} assigned {step.value}", seen=True)
    if not place.missing:
        return native
    # An attribute can be assigned that nobody looks at.
    return _stale(native, stale(module.name, step, place.missing))


def _stale(native: Native, reason: str) -> Native:
    return replace(native, state=State.FAILED, reason=reason, seen=False)


def _is_being_executed(name: str) -> bool:
    return name in sys.modules and not is_loaded(name)
