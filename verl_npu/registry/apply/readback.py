"""Checks of upstream's own patches after upstream has applied them: they are in force, or they had no effect."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

from ...errors import DriftError, SourceError
from ..judge.policy import Policy, unpatched_error
from ..judge.verdict import Verdict
from ..source.named import PatchModule
from ..source.tree import SourceTree
from ..state import NativeEntry, State
from . import hooks
from .ledger import Ledger, is_loaded
from .replacement import belongs
from .slots import MISSING, Slot, namespace, pass_through, slot_of

if TYPE_CHECKING:
    # Imported where needed, like everything that reads a patch module: few processes of a job import one.
    from ..judge.natives import Native
    from ..source.reader import Step


class Readback:
    """The results of upstream's own patches in this process."""

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
        self._ran: dict[tuple[PatchModule, str], str] = {}
        """The modules that were imported, and their functions that were called. The value is the error, or empty if
        none occurred."""
        self._natives: dict[PatchModule, Sequence[Native]] = {}
        self._seen: dict[str, Native] = {}
        self._told: set[str] = set()
        self._wrappers: list[tuple[Slot, object, object]] = []
        self._hooks: list[tuple[str, Callable[[ModuleType], None]]] = []

    def watch(self, tree: SourceTree) -> None:
        """Check upstream's patches after each patch module (an upstream module that patches other packages) is
        imported, and after the module's functions are called."""
        self._tree = tree
        for module in self._modules:
            for hook, before in ((self._starts, True), (self._imported, False)):
                placed = functools.partial(hook, module)
                self._hooks.append((module.name, placed))
                hooks.add_hook(module.name, placed, before=before)

    def release(self) -> None:
        """Remove the hooks and wrappers that `watch` installed. Calling this method again has no effect."""
        for name, hook in self._hooks:
            hooks.remove_hook(name, hook)
        for slot, wrapper, original in self._wrappers:
            if slot.read() is wrapper:
                slot.write(original)
            pass_through(wrapper, original)
        for kept in (self._hooks, self._wrappers, self._ran, self._natives, self._seen, self._told):
            kept.clear()

    def settled(self, verdict: Verdict) -> Verdict:
        """Return the verdict. If upstream's own patches do the work of this patch, first update the verdict with their
        observed effect."""
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
        """Return a dict of plain data that maps each target patched by upstream to the state of that target.

        Targets whose assignment has not been executed yet are omitted, and so are targets of the registry's own
        patches.
        """
        ours = {str(patch.target) for patch in self._ledger.live()}
        entries: dict[str, NativeEntry] = {}
        for native in self._reached().values():
            # Once one of the registry's patches replaces a function, upstream's version no longer matters.
            if native.target not in ours:
                verdict = self._observed(native)
                entries[native.target] = {"by": native.by, "state": str(verdict.state), "reason": verdict.reason}
        return entries

    def _starts(self, module: PatchModule, _: ModuleType) -> None:
        # If its execution fails, we hear nothing more, because upstream may catch the error.
        self._ran[module, ""] = f"importing {module.name} failed"

    def _imported(self, module: PatchModule, executed: ModuleType) -> None:
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
            # The function may have been called before we came.
            if any(self._holds(step, executed) for step in self._steps(module, call)):
                self._read(module, call)

    def _watched(self, module: PatchModule, call: str, original: FunctionType) -> Callable[..., object]:
        @functools.wraps(original)
        def watched(*args: object, **kwargs: object) -> object:
            try:
                result = original(*args, **kwargs)
            except Exception as error:
                self._ran[module, call] = f"{module.name}:{call} raised {type(error).__name__}: {error}"
                self._changed()
                raise
            self._read(module, call)
            return result

        return watched

    def _read(self, module: PatchModule, call: str) -> None:
        """Check whether the assignments of `module` have an effect. In strict mode, raises DriftError if one has
        none."""
        self._ran[module, call] = ""
        executed = sys.modules.get(module.name)
        for step in self._steps(module, call):
            if executed is not None and self._holds(step, executed):
                self._seen[step.place] = self._as_seen(module, step)
        self._changed()
        drift = self._ineffective(module)
        if drift is not None:
            self._warn(str(drift))
            if self._policy.strict:
                raise drift

    def _reached(self) -> dict[str, Native]:
        """Return the assignments that have been executed, by the names that they assign. They may have an effect or
        not."""
        lost: dict[str, Native] = {}
        for (module, call), failure in self._ran.items():
            if not call and failure and module.name in sys.modules and not is_loaded(module.name):
                continue  # it is being executed
            # A step under a condition that the source does not settle may rightly not have run.
            steps = [s for s in self._steps(module, call) if s.place not in self._seen and not s.conditions]
            if failure or steps:
                natives = [n for n in self._judged(module) if failure or n.step in steps]
                lost |= {native.step.place: self._unseen(native, failure) for native in natives}
        return {**lost, **self._seen}

    def _unseen(self, native: Native, failure: str) -> Native:
        if native.state is not State.NATIVE:
            return native
        slot = slot_of(native.step.place)
        value = MISSING if slot is None else slot.read()
        reason = failure or f"{native.by} ran, and {native.target} is {value!r}"[:300]
        return replace(native, state=State.FAILED, reason=reason)

    def _as_seen(self, module: PatchModule, step: Step) -> Native:
        from ..judge.natives import Native, stale
        from ..source.lookup import resolve

        place = resolve(step.place, self._tree)
        if place.missing:
            # Python allows assigning an attribute that nobody reads.
            return Native(place.name, module.name, step, State.FAILED, stale(module.name, step, place.missing))
        return Native(place.name, module.name, step, State.NATIVE, f"{module.name} assigned {step.value}", seen=True)

    def _observed(self, native: Native) -> Verdict:
        """Return the current state of an assignment. Other code may have overwritten it, or one of the registry's
        patches may have undone it."""
        executed = sys.modules.get(native.by)
        if native.seen and executed is not None and not self._holds(native.step, executed):
            undone = self._ledger.undoing(native.step.place)
            if undone:
                return Verdict(State.OFF, f"undone by {undone}")
            return Verdict(State.OVERWRITTEN, f"{native.by} assigned it, and it was overwritten since")
        return Verdict(native.state, native.reason, seen=native.seen)

    def _holds(self, step: Step, executed: ModuleType) -> bool:
        """Return whether the name that a step assigns still holds upstream's value. One of the registry's patches may
        lie over this value."""
        slot = slot_of(step.place)
        return slot is not None and belongs(self._ledger.beneath(slot), step.value, executed)

    def _ineffective(self, module: PatchModule) -> DriftError | None:
        """Return an error if some patches are left to `module`, but the module does not patch their targets."""
        reached = self._reached()
        lost = {}
        for patch_id, places in self._ledger.claims().items():
            bad = [n for n in map(reached.get, places) if n is not None and n.state is State.FAILED]
            if bad and bad[0].by == module.name and patch_id not in self._told:
                lost[patch_id] = bad[0]
        if not lost:
            return None
        self._told.update(lost)
        natives = list(lost.values())
        expected = f"{module.name} to patch it"
        return unpatched_error([native.target for native in natives], expected, natives[0].reason, self._policy)

    def _judged(self, module: PatchModule) -> Sequence[Native]:
        """Look up all assignments of `module` in the source. The result is kept, because parsing the targets takes a
        while."""
        from ..judge.natives import natives_of

        if module not in self._natives:
            self._natives[module] = natives_of(module, self._tree)
        return self._natives[module]

    def _steps(self, module: PatchModule, call: str) -> list[Step]:
        """Return the assignments that `module` makes when it is imported. With `call`, those that this function
        makes."""
        from ..judge.natives import patched_packages
        from ..source.reader import read_patches

        try:
            packages = {module.name.partition(".")[0]}
            for _ in range(2):
                unknown = [package for package in sorted(packages) if not self._tree.covers(package)]
                self._tree = self._tree.with_packages(SourceTree.installed(unknown)) if unknown else self._tree
                packages = patched_packages([module], self._tree)
            steps = read_patches(module, self._tree).steps
        except SourceError as error:
            self._warn(f"{error}; the patches that {module.name} makes are not read back in this process")
            return []
        return [step for step in steps if step.value and step.call == call]
