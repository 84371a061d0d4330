"""The engine: verifies features, applies their patches as modules are imported, and knows the state of each."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from ..source.tree import SourceTree
from ..state import State, feature_state
from . import hooks
from .application import Application
from .binding import Binding, Rollback
from .live import comes_from

__all__ = ["Registry"]

_LIVE = (State.PENDING, State.APPLIED)


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
    ) -> None:
        self.policy = policy
        self.features: Sequence[Feature] = ()
        self.revisions: dict[str, Revision] = {}
        self.seconds = 0.0
        self._trigger = trigger
        self._upstreams = upstreams
        self._load_features = features
        self._locks_folder = locks
        self._warn = warn
        self._changed = changed
        self._lock = threading.RLock()
        self._active = False
        self._begun = False
        self._error: VerlNpuError | None = None
        self._tree = SourceTree({})
        self._verdicts: dict[str, Verdict] = {}
        self._bindings: dict[str, Binding] = {}
        self._hooks: dict[tuple[str, str], Callable[[ModuleType], None]] = {}
        # Another thread may hold the lock at a fork, and does not exist in the child.
        os.register_at_fork(after_in_child=self._renew_lock)

    @property
    def active(self) -> bool:
        """Whether the registry is between `activate` and `deactivate`."""
        return self._active

    @property
    def tainted(self) -> tuple[str, ...]:
        """The drifted features that were applied because the user forces them."""
        return tuple(sorted({p.feature for p in self._patches() if self._verdicts[p.id].forced}))

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
            if not self._active and not self._bindings:
                return
            hooks.remove_hook(self._trigger, self._before_trigger)
            for (module, _), hook in self._hooks.items():
                hooks.remove_hook(module, hook)
            self._hooks.clear()
            interruption = self._take_back(tuple(self._bindings), "deactivated")
            for patch_id, verdict in self._verdicts.items():
                # A guard has nothing to put back.
                if verdict.state in (*_LIVE, State.VERIFIED) and patch_id not in self._bindings:
                    self._verdicts[patch_id] = Verdict(State.REGISTERED, "deactivated")
            self._active = self._begun = False
            self._error = None
            self._changed(self)
        if interruption is not None:
            raise interruption

    def status(self) -> dict[str, Verdict]:
        """The state of each patch by its id, read back from the live objects."""
        with self._lock:
            return {patch.id: self._observed(patch) for patch in self._patches()}

    def states(self) -> dict[str, State]:
        """The state of each feature by its name."""
        status = self.status()
        return {f.name: feature_state(status[patch.id].state for patch in f) for f in self.features}

    def activity(self) -> RegistryActivity:
        """What this process did, as plain data for a manifest."""
        status = self.status()
        return {
            "upstreams": {name: revision.as_json() for name, revision in self.revisions.items()},
            "features": {
                feature.name: {
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
            },
            "tainted": list(self.tainted),
            "seconds": round(self.seconds, 6),
        }

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()

    def _patches(self) -> Iterator[Patch]:
        return (patch for feature in self.features for patch in feature)

    def _observed(self, patch: Patch) -> Verdict:
        verdict = self._verdicts[patch.id]
        binding = self._bindings.get(patch.id)
        if verdict.state is State.APPLIED and binding is not None and not binding.in_force():
            return replace(verdict, state=State.SHADOWED, reason=f"overwritten since by {binding.slot.read()!r}"[:300])
        if verdict.state is State.PENDING and _is_loaded(patch.target.module):
            return replace(verdict, state=State.MISSED, reason=f"{patch.target.module} was loaded past our hooks")
        return verdict

    def _before_trigger(self, module: ModuleType) -> None:
        self._begin()

    def _begin(self) -> None:
        with self._lock:
            if not self._active:
                return
            if not self._begun:
                self._begun = True
                self._verify()
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
            self._verdicts = {p.id: Verdict(State.FAILED, str(error)) for p in self._patches()}
            self._warn(f"{error}; nothing is patched in this process")
        finally:
            self.seconds += time.perf_counter() - started

    def _judge(self) -> None:
        self.features = self._load_features()
        self._verdicts = {patch.id: Verdict(State.REGISTERED, "") for patch in self._patches()}
        conflicts(list(self.features))
        self.policy.check(feature.name for feature in self.features)
        packages = [package for upstream in self._upstreams for package in upstream.packages]
        self._tree = SourceTree.installed(packages)
        locks = {upstream.name: read_locks(self._locks_folder, upstream.name) for upstream in self._upstreams}
        self.revisions, verdicts = judge(self.features, self._upstreams, self._tree, locks)
        for feature in self.features:
            settled, drift = settle(feature, verdicts, self.policy)
            self._verdicts |= settled
            if drift is not None:
                self._warn(str(drift))
                self._error = self._error or drift

    def _place_hooks(self) -> None:
        for patch in self._patches():
            if self._verdicts[patch.id].state in _LIVE:
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
        for patch in self._patches():
            verdict = self._verdicts[patch.id]
            if patch.action is Action.GUARD and patch.target.module == name and verdict.state in _LIVE:
                self._verdicts[patch.id] = replace(verdict, state=State.APPLIED)
                patch.implementation()

    def _after_module(self, name: str, module: ModuleType) -> None:
        with self._lock:
            self._apply({name: module})
            self._changed(self)

    def _apply(self, executed: Mapping[str, ModuleType]) -> None:
        """Apply what waits for the modules that have just been executed, and for those that got past our hooks."""
        started = time.perf_counter()
        modules = {**self._overlooked(executed), **executed}
        errors: list[BaseException] = []
        if modules:
            wanted = {f.name: [p for p in f if self._waits(p, modules, executed)] for f in self.features}
            application = Application(self._tree, self._bindings, modules, executed)
            prepared = application.prepare(
                {name: patches for name, patches in wanted.items() if patches}, self._is_forced
            )
            for feature in self.features:
                if feature.name in prepared:
                    error = self._apply_feature(feature, prepared[feature.name])
                    errors += [error] if error is not None else []
        self.seconds += time.perf_counter() - started
        for error in errors:
            if self.policy.strict or not isinstance(error, Exception):
                raise error

    def _overlooked(self, executed: Mapping[str, ModuleType]) -> dict[str, ModuleType]:
        waiting = {p.target.module for p in self._patches() if self._verdicts[p.id].state is State.PENDING}
        return {name: sys.modules[name] for name in sorted(waiting - executed.keys()) if _is_loaded(name)}

    def _waits(self, patch: Patch, modules: Mapping[str, ModuleType], executed: Mapping[str, ModuleType]) -> bool:
        state = self._verdicts[patch.id].state
        # What is applied is applied again only to a module that was executed again.
        again = state is State.APPLIED and patch.target.module in executed
        wanted = patch.target.module in modules and (state is State.PENDING or again)
        return wanted and patch.action is not Action.GUARD

    def _is_forced(self, patch: Patch) -> bool:
        return self._verdicts[patch.id].forced

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
                self._bindings |= {binding.patch.id: binding for binding in done}
            except BaseException as error:
                failure = error
        if failure is None:
            for binding in done:
                self._verdicts[binding.patch.id] = self._applied(binding)
            return None
        if failed is None:
            failed = next(iter(feature))
        # The bindings of before have been taken over: to put back the new ones puts back those as well.
        self._bindings |= {binding.patch.id: binding for binding in done}
        self._fail(feature, failed, failure)
        return failure

    def _applied(self, binding: Binding) -> Verdict:
        verdict = replace(self._verdicts[binding.patch.id], state=State.APPLIED)
        if not binding.unreached:
            return verdict
        shown = ", ".join(binding.unreached[:3]) + (" and others" if len(binding.unreached) > 3 else "")
        reason = verdict.reason.partition("; copies of it")[0]
        return replace(verdict, reason=f"{reason}; copies of it stay upstream's: {shown}")

    def _apply_again(self, name: str, module: ModuleType) -> None:
        """`module` is one that overwrites what some features patch: if it did, ours is put in its place."""
        with self._lock:
            for patch in (patch for feature in self.features if feature.after == name for patch in feature):
                beneath = self._bindings.get(patch.id)
                if beneath is None or beneath.in_force() or not comes_from(beneath.slot.read(), module):
                    continue
                binding = Binding(patch, beneath.slot, beneath.slot.read(), beneath.after, earlier=beneath)
                # Its target is somebody else's now; the copies that it rebound are still ours.
                beneath.writes = [write for write in beneath.writes if write.slot != beneath.slot]
                binding.write([binding.slot])
                self._bindings[patch.id] = binding
                verdict = self._verdicts[patch.id]
                self._verdicts[patch.id] = replace(verdict, reason=f"{verdict.reason}; over what {name} put there")
            self._changed(self)

    def _fail(self, feature: Feature, failed: Patch, failure: BaseException) -> None:
        whole = f"{failed.id} failed, and features go whole"
        before = {patch.id: self._verdicts[patch.id] for patch in feature}
        self._take_back([patch.id for patch in feature if patch.id in self._bindings], whole)
        if not isinstance(failure, Exception):
            # Interrupted, not failed: the import that was interrupted may be tried again, and the feature with it.
            for patch_id, verdict in before.items():
                if patch_id not in self._bindings and verdict.state in _LIVE:
                    self._verdicts[patch_id] = replace(verdict, state=State.PENDING)
            return
        for patch in feature:
            if self._verdicts[patch.id].state in _LIVE:
                self._verdicts[patch.id] = Verdict(State.VERIFIED, f"not applied: {whole}")
        text = str(failure) if isinstance(failure, VerlNpuError) else f"{type(failure).__name__}: {failure}"
        if failed.id not in self._bindings:
            self._verdicts[failed.id] = Verdict(State.FAILED, text)
        self._warn(f"feature {feature.name} failed and was taken back: {text}")

    def _take_back(self, patch_ids: Sequence[str], reason: str) -> BaseException | None:
        """Put back what these patches wrote, newest first. Return the interruption that came meanwhile, if any."""
        interruption = None
        for patch_id in reversed(patch_ids):
            rollback = self._bindings[patch_id].restore()
            self._verdicts[patch_id] = _after_rollback(rollback, reason)
            if not rollback.failed:
                del self._bindings[patch_id]
                continue
            self._warn(f"patch {patch_id} could not be taken back: {self._verdicts[patch_id].reason}")
            errors = [error for _, error in rollback.failed if not isinstance(error, Exception)]
            interruption = interruption or next(iter(errors), None)
        return interruption


def _after_rollback(rollback: Rollback, reason: str) -> Verdict:
    if rollback.failed:
        slots = ", ".join(f"{write.slot} ({type(error).__name__}: {error})" for write, error in rollback.failed)
        return Verdict(State.FAILED, f"{reason}; still ours, since they could not be put back: {slots}")
    if rollback.overwritten:
        # What somebody else has put there since is theirs: saying "rolled back" of it would be untrue.
        return Verdict(
            State.SHADOWED, f"{reason}; overwritten since and left: {', '.join(map(str, rollback.overwritten))}"
        )
    return Verdict(State.ROLLED_BACK, reason)


def _is_loaded(name: str) -> bool:
    """Whether a module has been executed to its end in this process."""
    module = sys.modules.get(name)
    if module is None:
        return False
    spec = getattr(module, "__spec__", None)
    # The second is importlib.util's mark of a module that waits for its first use.
    return not getattr(spec, "_initializing", False) and getattr(spec, "loader_state", None) is None
