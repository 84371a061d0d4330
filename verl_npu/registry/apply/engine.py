"""The engine: verifies features, applies their patches as modules are imported, and knows the state of each."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from ...errors import VerlNpuError
from ..activity import RegistryActivity
from ..judge.judgement import Status, judge, settle
from ..judge.lock import read_locks
from ..judge.revision import Revision
from ..patch import Action, Feature, Patch, Upstream, conflicts
from ..policy import Policy
from ..source.tree import SourceTree
from ..state import State, feature_state
from . import hooks
from .binding import Binding, build, check_live, comes_from, find_slot
from .copies import all_modules, follow_copies, modules_since, rebind_copies

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
        self._statuses: dict[str, Status] = {}
        self._bindings: dict[str, Binding] = {}
        self._hooked: list[str] = []
        self._watched: list[str] = []
        self._guarded: list[str] = []

    @property
    def active(self) -> bool:
        """Whether the registry is between `activate` and `deactivate`."""
        return self._active

    @property
    def tainted(self) -> tuple[str, ...]:
        """The drifted features that were applied because the user forces them."""
        drifted = {feature.name for feature in self.features for patch in feature if self._forced(patch)}
        return tuple(sorted(drifted))

    def _forced(self, patch: Patch) -> bool:
        status = self._statuses.get(patch.id)
        return status is not None and status.reason.startswith("by force")

    def activate(self) -> None:
        """Wait for the trigger module, or begin at once where it is imported already. Repeating it does nothing."""
        with self._lock:
            if self._active:
                return
            self._active = True
            hooks.add_hook(self._trigger, self._before_trigger, before=True)
        if self._trigger in sys.modules:
            self._begin()

    def deactivate(self) -> None:
        """Take back every patch and every hook. Repeating it does nothing."""
        with self._lock:
            if not self._active:
                return
            hooks.remove_hook(self._trigger, self._before_trigger)
            for module in self._hooked:
                hooks.remove_hook(module, self._apply_module)
            for module in self._watched:
                hooks.remove_hook(module, self._apply_again)
            self._hooked.clear()
            self._watched.clear()
            for module in self._guarded:
                hooks.remove_hook(module, self._before_module)
            self._guarded.clear()
            for patch_id in list(self._bindings):
                self._take_back(patch_id, "deactivated")
            for patch_id, status in self._statuses.items():
                # A guard has nothing to put back.
                if status.state in (State.PENDING, State.VERIFIED, State.APPLIED):
                    self._statuses[patch_id] = Status(State.REGISTERED, "deactivated")
            self._active = self._begun = False
            self._error = None
            self._changed(self)

    def status(self) -> dict[str, Status]:
        """The state of each patch by its id, read back from the live objects."""
        with self._lock:
            for patch_id, binding in self._bindings.items():
                if self._statuses[patch_id].state is State.APPLIED and not binding.in_force():
                    found = binding.slot.read()
                    self._statuses[patch_id] = Status(State.SHADOWED, f"overwritten since by {found!r}"[:300])
            return dict(self._statuses)

    def states(self) -> dict[str, State]:
        """The state of each feature by its name."""
        statuses = self.status()
        return {f.name: feature_state(statuses[patch.id].state for patch in f) for f in self.features}

    def _before_trigger(self, module: ModuleType) -> None:
        self._begin()

    def _begin(self) -> None:
        with self._lock:
            if not self._active:
                return
            if not self._begun:
                self._begun = True
                started = time.perf_counter()
                try:
                    self._verify()
                except VerlNpuError as error:
                    self._error = error
                    self._statuses = dict.fromkeys(self._statuses, Status(State.FAILED, str(error)))
                    self._warn(f"{error}; nothing is patched in this process")
                finally:
                    self.seconds += time.perf_counter() - started
                self._changed(self)
            if self._error is not None and self.policy.strict:
                raise self._error
            pending = [p for f in self.features for p in f if self._statuses[p.id].state is State.PENDING]
            to_guard = sorted({p.target.module for p in pending if p.action is Action.GUARD} - set(self._guarded))
            to_hook = sorted({p.target.module for p in pending if p.action is not Action.GUARD} - set(self._hooked))
            self._guarded += to_guard
            self._hooked += to_hook
        for name in to_guard:
            hooks.add_hook(name, self._before_module, before=True)
        for name in to_hook:
            hooks.add_hook(name, self._apply_module)
        for name in {feature.after for feature in self.features if feature.after} - set(self._watched):
            self._watched.append(name)
            hooks.add_hook(name, self._apply_again)

    def _verify(self) -> None:
        self.features = self._load_features()
        self._statuses = {p.id: Status(State.REGISTERED, "") for feature in self.features for p in feature}
        conflicts(list(self.features))
        self.policy.check(feature.name for feature in self.features)
        packages = [package for upstream in self._upstreams for package in upstream.packages]
        self._tree = SourceTree.installed(packages)
        locks = {upstream.name: read_locks(self._locks_folder, upstream.name) for upstream in self._upstreams}
        self.revisions, verdicts = judge(self.features, self._upstreams, self._tree, locks)
        for feature in self.features:
            statuses, drift = settle(feature, verdicts, self.policy)
            self._statuses |= statuses
            if drift is not None:
                self._warn(str(drift))
                self._error = self._error or drift

    def _before_module(self, module: ModuleType) -> None:
        for patch in (patch for feature in self.features for patch in feature):
            status = self._statuses[patch.id]
            if (
                patch.action is Action.GUARD
                and patch.target.module == module.__name__
                and status.state in (State.PENDING, State.APPLIED)
            ):
                self._statuses[patch.id] = Status(State.APPLIED, status.reason)
                patch.implementation()

    def _apply_module(self, module: ModuleType) -> None:
        started = time.perf_counter()
        with self._lock:
            for feature in self.features:
                patches = [patch for patch in feature if patch.target.module == module.__name__]
                wanted = [
                    p
                    for p in patches
                    if p.action is not Action.GUARD and self._statuses[p.id].state in (State.PENDING, State.APPLIED)
                ]
                if wanted:
                    self._apply_feature(feature, wanted, module)
            self.seconds += time.perf_counter() - started
            self._changed(self)

    def _apply_feature(self, feature: Feature, patches: list[Patch], module: ModuleType) -> None:
        executing = getattr(getattr(module, "__spec__", None), "_initializing", False)
        made: list[Binding] = []
        patch = patches[0]
        try:
            for patch in patches:
                made.append(self._prepare(patch, module))
            for binding in made:
                patch = binding.patch
                binding.slot.write(binding.after)
                outdated = self._bindings.get(patch.id)
                self._bindings[patch.id] = binding
                if outdated is not None:
                    follow_copies(outdated, binding)
                rebind_copies(binding, modules_since(module) if executing else all_modules(), self._tree)
                if not binding.in_force():
                    raise VerlNpuError(
                        subject=f"patch {patch.id}",
                        expected=f"{patch.target} to be ours after writing it",
                        found=f"{binding.slot.read()!r}"[:200],
                        fix="another package guards this attribute: load only one of the two",
                        override="none",
                    )
                reason = self._statuses[patch.id].reason
                self._statuses[patch.id] = Status(State.APPLIED, reason)
        except Exception as error:
            self._fail(feature, patch, error)
            if self.policy.strict:
                raise

    def _apply_again(self, module: ModuleType) -> None:
        """`module` is one that overwrites what some features patch: where it did, ours is put in its place."""
        with self._lock:
            for patch in (patch for feature in self.features if feature.after == module.__name__ for patch in feature):
                beneath = self._bindings.get(patch.id)
                if beneath is None or beneath.in_force() or not comes_from(beneath.slot.read(), module):
                    continue
                binding = Binding(patch, beneath.slot, beneath.slot.read(), beneath.after, beneath=beneath)
                binding.slot.write(binding.after)
                self._bindings[patch.id] = binding
                self._statuses[patch.id] = Status(
                    State.APPLIED, f"{self._statuses[patch.id].reason}; over what {module.__name__} put there"
                )
            self._changed(self)

    def _prepare(self, patch: Patch, module: ModuleType) -> Binding:
        slot = find_slot(module, patch.target)
        made = self._bindings.get(patch.id)
        if made is not None and made.slot == slot and made.in_force():
            # A reload executes the module in its old namespace, so a name that we added is still there.
            return made
        if not self._forced(patch):
            check_live(patch, slot, self._tree, module)
        before = slot.read()
        return Binding(patch, slot, before, build(patch, before))

    def _fail(self, feature: Feature, failed: Patch, error: Exception) -> None:
        for patch in feature:
            if patch.id in self._bindings:
                self._take_back(patch.id, f"{failed.id} failed, and features go whole")
            elif self._statuses[patch.id].state in (State.PENDING, State.APPLIED):
                self._statuses[patch.id] = Status(
                    State.VERIFIED, f"not applied: {failed.id} failed, and features go whole"
                )
        text = str(error) if isinstance(error, VerlNpuError) else f"{type(error).__name__}: {error}"
        self._statuses[failed.id] = Status(State.FAILED, text)
        self._warn(f"feature {feature.name} failed and was taken back: {text}")

    def _take_back(self, patch_id: str, reason: str) -> None:
        left = self._bindings.pop(patch_id).restore()
        # What somebody else has put there since is theirs: saying "rolled back" of it would be untrue.
        state = State.SHADOWED if left else State.ROLLED_BACK
        suffix = f"; overwritten since and left: {', '.join(left)}" if left else ""
        self._statuses[patch_id] = Status(state, reason + suffix)

    def activity(self) -> RegistryActivity:
        """What this process did, as plain data for a manifest."""
        statuses = self.status()
        states = self.states()
        return {
            "upstreams": {name: revision.as_json() for name, revision in self.revisions.items()},
            "features": {
                feature.name: {
                    "state": str(states[feature.name]),
                    "patches": {
                        patch.id: {
                            "target": str(patch.target),
                            "state": str(statuses[patch.id].state),
                            "reason": statuses[patch.id].reason,
                        }
                        for patch in feature
                    },
                }
                for feature in self.features
            },
            "tainted": list(self.tainted),
            "seconds": round(self.seconds, 6),
        }
