"""The engine: verifies features, applies their patches as modules are imported, and knows the state of each."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

from ...errors import VerlNpuError
from ..activity import RegistryActivity
from ..judge.judgement import judge, settle
from ..judge.lock import read_locks
from ..judge.revision import Revision
from ..judge.verdict import Verdict
from ..patch import Action, Feature, Patch, Upstream, conflicts
from ..policy import Policy
from ..source.assignments import PatchModule
from ..source.tree import SourceTree
from ..state import State
from . import hooks
from .application import Application
from .binding import Binding
from .ledger import LIVE, Ledger
from .live import comes_from
from .mutex import Mutex
from .readback import Readback

__all__ = ["Registry"]


class Registry:
    """The features of one plugin in one process.

    `features` is called, and sources are read, when the module `trigger` is about to be imported and not before: until
    then an active registry costs one dictionary look-up for each import.
    """

    def __init__(
        self,
        *,
        trigger: str,
        upstreams: Sequence[Upstream],
        features: Callable[[], Sequence[Feature]],
        locks: Path,
        policy: Policy,
        warn: Callable[[str], None],
        changed: Callable[[Registry], None],
        patch_modules: Sequence[PatchModule] = (),
    ) -> None:
        """`patch_modules` are modules of upstreams that patch other packages by themselves: they are read back."""
        self.policy = policy
        self.revisions: dict[str, Revision] = {}
        self.seconds = 0.0
        self._trigger = trigger
        self._upstreams = upstreams
        self._load_features = features
        self._locks_folder = locks
        self._warn = warn
        self._changed = changed
        self._lock = Mutex(self._forked_midway)
        self._active = False
        self._begun = False
        self._error: VerlNpuError | None = None
        self._tree = SourceTree({})
        self._ledger = Ledger(warn)
        self._readback = Readback(patch_modules, self._ledger, policy, warn, lambda: changed(self))
        self._ledger.upstreams_own = self._readback.verdict
        self._hooks: dict[tuple[str, str], Callable[[ModuleType], None]] = {}

    @property
    def features(self) -> Sequence[Feature]:
        """The features, once the trigger module was imported."""
        return self._ledger.features

    @property
    def active(self) -> bool:
        """Whether the registry is between `activate` and `deactivate`."""
        return self._active

    @property
    def tainted(self) -> tuple[str, ...]:
        """The drifted features that were applied because the user forces them."""
        return tuple(sorted({p.feature for p in self._ledger.patches() if self._ledger.verdicts[p.id].forced}))

    def activate(self) -> None:
        """Wait for the trigger module, or begin at once if it is imported already. Repeating it does nothing."""
        with self._lock:
            if self._active:
                return
            self._active = True
            hooks.add_hook(self._trigger, self._before_trigger, before=True)
        if self._trigger in sys.modules:
            self._begin()

    def deactivate(self) -> None:
        """Take back every patch and every hook.

        Repeating it does nothing, or tries again what could not be put back. An interruption that comes meanwhile is
        raised at the end, when everything else has been put back.
        """
        with self._lock:
            if not self._active and not self._ledger.bindings:
                return
            hooks.remove_hook(self._trigger, self._before_trigger)
            for (module, _), hook in self._hooks.items():
                hooks.remove_hook(module, hook)
            self._hooks.clear()
            interruption = self._ledger.take_back(tuple(self._ledger.bindings), "deactivated")
            self._readback.release()
            for patch_id, verdict in self._ledger.verdicts.items():
                # A guard has nothing to put back.
                if verdict.state in (*LIVE, State.VERIFIED) and patch_id not in self._ledger.bindings:
                    self._ledger.verdicts[patch_id] = Verdict(State.REGISTERED, "deactivated")
            self._active = self._begun = False
            self._error = None
            self._changed(self)
        if interruption is not None:
            raise interruption

    def status(self) -> dict[str, Verdict]:
        """The state of each patch by its id, read back from the live objects."""
        with self._lock:
            return self._ledger.status()

    def states(self) -> dict[str, State]:
        """The state of each feature by its name."""
        with self._lock:
            return self._ledger.states()

    def activity(self) -> RegistryActivity:
        """What this process did, as plain data for a manifest."""
        return {
            "upstreams": {name: revision.as_json() for name, revision in self.revisions.items()},
            "features": self._ledger.entries(),
            "natives": self._readback.entries(),
            "tainted": list(self.tainted),
            "seconds": round(self.seconds, 6),
        }

    def _forked_midway(self) -> None:
        self._ledger.abandon("this process was forked while another thread of its parent was patching")

    def _before_trigger(self, module: ModuleType) -> None:
        self._begin()

    def _begin(self) -> None:
        with self._lock:
            if not self._active:
                return
            if not self._begun:
                self._begun = True
                self._verify()
                self._readback.watch(self._tree)
                self._changed(self)
            if self._error is not None and self.policy.strict:
                raise self._error
            self._apply({})
            self._place_hooks()

    def _verify(self) -> None:
        started = time.perf_counter()
        try:
            self._judge()
        except VerlNpuError as error:
            self._error = error
            self._ledger.verdicts = {p.id: Verdict(State.FAILED, str(error)) for p in self._ledger.patches()}
            self._warn(f"{error}; nothing is patched in this process")
        finally:
            self.seconds += time.perf_counter() - started

    def _judge(self) -> None:
        self._ledger.features = self._load_features()
        self._ledger.verdicts = {patch.id: Verdict(State.REGISTERED, "") for patch in self._ledger.patches()}
        conflicts(list(self.features))
        self.policy.check(feature.name for feature in self.features)
        packages = [package for upstream in self._upstreams for package in upstream.packages]
        self._tree = SourceTree.installed(packages)
        locks = {upstream.name: read_locks(self._locks_folder, upstream.name) for upstream in self._upstreams}
        self.revisions, verdicts = judge(self.features, self._upstreams, self._tree, locks)
        for feature in self.features:
            settled, drift = settle(feature, verdicts, self.policy)
            self._ledger.verdicts |= settled
            if drift is not None:
                self._warn(str(drift))
                self._error = self._error or drift

    def _place_hooks(self) -> None:
        for patch in self._ledger.patches():
            if self._ledger.verdicts[patch.id].state in LIVE:
                kind = "before" if patch.action is Action.GUARD else "after"
                self._place_hook(patch.target.module, kind)
        for feature in self.features:
            if feature.after:
                self._place_hook(feature.after, "again")

    def _place_hook(self, module: str, kind: str) -> None:
        if (module, kind) in self._hooks:
            return
        run = {"before": self._before_module, "after": self._after_module, "again": self._apply_again}[kind]
        hook = self._hooks[module, kind] = partial(run, module)
        hooks.add_hook(module, hook, before=kind == "before")

    def _before_module(self, name: str, module: ModuleType) -> None:
        for patch in self._ledger.patches():
            verdict = self._ledger.verdicts[patch.id]
            if patch.action is Action.GUARD and patch.target.module == name and verdict.state in LIVE:
                self._ledger.verdicts[patch.id] = replace(verdict, state=State.APPLIED)
                patch.implementation()

    def _after_module(self, name: str, module: ModuleType) -> None:
        with self._lock:
            self._apply({name: module})
            self._changed(self)

    def _apply(self, executed: Mapping[str, ModuleType]) -> None:
        """Apply what waits for the modules that have just been executed, and for those that got past our hooks."""
        started = time.perf_counter()
        modules = {**self._ledger.overlooked(executed), **executed}
        errors: list[BaseException] = []
        if modules:
            wanted = {f.name: [p for p in f if self._waits(p, modules, executed)] for f in self.features}
            application = Application(self._tree, self._ledger.bindings, modules, executed)
            prepared = application.prepare(
                {name: patches for name, patches in wanted.items() if patches}, self._is_trusted
            )
            for feature in self.features:
                if feature.name in prepared:
                    error = self._apply_feature(feature, prepared[feature.name])
                    errors += [error] if error is not None else []
        self.seconds += time.perf_counter() - started
        for error in errors:
            if self.policy.strict or not isinstance(error, Exception):
                raise error

    def _waits(self, patch: Patch, modules: Mapping[str, ModuleType], executed: Mapping[str, ModuleType]) -> bool:
        state = self._ledger.verdicts[patch.id].state
        # What is applied is applied again only to a module that was executed again.
        again = state is State.APPLIED and patch.target.module in executed
        wanted = patch.target.module in modules and (state is State.PENDING or again)
        return wanted and patch.action is not Action.GUARD

    def _is_trusted(self, patch: Patch, value: object) -> bool:
        """Whether the user forces the patch, or the module after which its feature goes put the object there."""
        if self._ledger.verdicts[patch.id].forced:
            return True
        after = next(feature.after for feature in self.features if feature.name == patch.feature)
        before_us = sys.modules.get(after) if after else None
        return before_us is not None and comes_from(value, before_us)

    def _apply_feature(self, feature: Feature, prepared: Application.Prepared) -> BaseException | None:
        """Write what was prepared for a feature, all of it or none. Return what went wrong."""
        done: list[Binding] = []
        failed, failure = prepared.failed, prepared.failure
        if failure is None:
            try:
                for binding in prepared.bindings:
                    failed = binding.patch
                    done.append(binding)
                    prepared.write(binding)
                self._ledger.bindings |= {binding.patch.id: binding for binding in done}
            except BaseException as error:
                failure = error
        if failure is None:
            self._ledger.applied(done)
            return None
        if failed is None:
            failed = next(iter(feature))
        # The bindings of before have been taken over: to put back the new ones puts back those as well.
        self._ledger.bindings |= {binding.patch.id: binding for binding in done}
        self._ledger.fail(feature, failed, failure)
        return failure

    def _apply_again(self, name: str, module: ModuleType) -> None:
        """`module` is one that overwrites what some features patch: if it did, ours is put in its place."""
        with self._lock:
            for patch in (patch for feature in self.features if feature.after == name for patch in feature):
                beneath = self._ledger.bindings.get(patch.id)
                if beneath is None or beneath.in_force() or not comes_from(beneath.slot.read(), module):
                    continue
                binding = Binding(patch, beneath.slot, beneath.slot.read(), beneath.after, earlier=beneath)
                # Its target is somebody else's now; the copies that it rebound are still ours.
                beneath.writes = [write for write in beneath.writes if write.slot != beneath.slot]
                binding.write([binding.slot])
                self._ledger.bindings[patch.id] = binding
                verdict = self._ledger.verdicts[patch.id]
                self._ledger.verdicts[patch.id] = replace(
                    verdict, reason=f"{verdict.reason}; over what {name} put there"
                )
            self._changed(self)
