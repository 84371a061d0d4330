"""The registry of a process: verifies features, applies their patches as modules are imported, and takes them back."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import ModuleType

from ...damage import is_passing
from ...errors import ApplyError, DamagedError, DeclarationError, VerlNpuError
from ..judge.bundles import judge_bundles
from ..judge.lock import Revision
from ..judge.verdict import Policy, Verdict, settle
from ..patch import Action, Bundle, Feature, Patch
from ..source.named import PatchModule
from ..source.tree import SourceTree
from ..state import LIVE, RegistryActivity, State
from . import hooks
from .ledger import Ledger
from .readback import Readback
from .replacement import build, check_live, comes_from
from .slots import Binding, Slot, all_modules, find_copies, find_slot, modules_since


class Mutex:
    """A re-entrant lock that is free in the child of a fork, with what it guards whole.

    A fork copies what every thread has done so far, and none of the other threads. With a plain lock the child would
    find it held for ever, or, if it were made anew, find the work of another thread half done. So a fork waits until
    no other thread holds this lock. It does not wait for ever: the thread that holds it may itself wait for something
    that the forking thread has, such as the import of a module whose code forks.
    """

    seconds = 10.0
    """How long a fork waits for another thread. Nothing that is done under the lock takes as long."""

    def __init__(self, broken: Callable[[], None]) -> None:
        """`broken` is called in a child whose parent waited too long: what the lock guards may be half done there."""
        self.lock = threading.RLock()
        """Python's own, for `with`: no interruption comes between what it guards and its release."""
        self._broken = broken
        # Of the forking thread: whether it got the lock.
        self._fork = threading.local()
        self._watch_forks()

    def _watch_forks(self) -> None:
        # For as long as it exists: Python never forgets what is registered for forks.
        me = weakref.ref(self)

        def call(act: Callable[[Mutex], None]) -> None:
            alive = me()
            if alive is not None:
                act(alive)

        os.register_at_fork(
            before=lambda: call(Mutex._before_fork),
            after_in_parent=lambda: call(Mutex._after_fork),
            after_in_child=lambda: call(Mutex._after_fork_in_child),
        )

    def _before_fork(self) -> None:
        self._fork.got = self.lock.acquire(timeout=self.seconds)

    def _after_fork(self) -> None:
        if self._fork.got:
            self.lock.release()

    def _after_fork_in_child(self) -> None:
        if self._fork.got:
            self.lock.release()
        else:
            self.lock = threading.RLock()
            self._broken()


Trusted = Callable[[Patch, object], bool]
"""Whether an object is taken as it is, although it may not be the one that the source defines."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What is known once all patches have been judged."""

    features: Sequence[Feature]
    tree: SourceTree = field(default_factory=lambda: SourceTree({}))
    revisions: Mapping[str, Revision] = field(default_factory=dict)
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    error: VerlNpuError | None = None
    """The first thing that is wrong: under strict each import of the trigger module raises it."""


@dataclass(slots=True)
class Prepared:
    """What one feature is about to write, or what keeps it from that."""

    bindings: list[Binding] = field(default_factory=list)
    copies: Mapping[str, Sequence[Slot]] = field(default_factory=dict)
    failed: Patch | None = None
    failure: BaseException | None = None

    def write(self, binding: Binding) -> None:
        """Write one patch and its copies. Raises ApplyError if the target does not hold it afterwards."""
        if binding.writes and binding.in_force():
            return
        binding.write([binding.slot])
        if binding.earlier is not None:
            _take_over(binding.earlier, binding)
        binding.write(self.copies.get(binding.patch.id, ()))
        if not binding.in_force():
            raise ApplyError(
                subject=f"patch {binding.patch.id}",
                expected=f"{binding.patch.target} to be the patch's after it was written",
                found=f"{binding.slot.read()!r}"[:200],
                fix="another package guards this attribute: load only one of the two",
            )


@dataclass(frozen=True, slots=True)
class Application:
    """What is about to be applied to some modules."""

    tree: SourceTree
    bindings: Mapping[str, Binding]
    """Those that are in force."""
    modules: Mapping[str, ModuleType]
    """Those that are to be patched."""
    executed: Mapping[str, ModuleType]
    """Those that have just been executed: copies of what is in them can be in few other modules."""

    def prepare(self, wanted: Mapping[str, Sequence[Patch]], trusted: Trusted) -> dict[str, Prepared]:
        """Make what will be written, by feature. Nothing is changed; what goes wrong is kept in the result."""
        prepared = {name: self._prepared(patches, trusted) for name, patches in wanted.items()}
        fresh = [b for p in prepared.values() if p.failure is None for b in p.bindings if not b.writes]
        copies = find_copies(fresh, self._holders(), self.tree) if fresh else {}
        for one in prepared.values():
            one.copies = copies
        return prepared

    def _prepared(self, patches: Sequence[Patch], trusted: Trusted) -> Prepared:
        prepared = Prepared()
        for patch in patches:
            try:
                prepared.bindings.append(self._binding(patch, trusted))
            except BaseException as error:
                prepared.failed, prepared.failure = patch, error
                break
        return prepared

    def _binding(self, patch: Patch, trusted: Trusted) -> Binding:
        module = self.modules[patch.target.module]
        slot = find_slot(module, patch.target)
        made = self.bindings.get(patch.id)
        if made is not None and made.slot == slot and made.in_force():
            # A reload executes the module in its old namespace, so a name that we added is still there.
            return made
        before = slot.read()
        if not trusted(patch, before):
            check_live(patch, slot, self.tree, module)
        return Binding(patch, slot, before, build(patch, before, slot), earlier=made)

    def _holders(self) -> list[ModuleType]:
        """The modules that may hold copies of what is about to be replaced."""
        if len(self.executed) != len(self.modules) or not self.executed:
            return list(all_modules())
        found: dict[int, ModuleType] = {}
        for module in self.executed.values():
            initializing = getattr(getattr(module, "__spec__", None), "_initializing", False)
            found |= {id(other): other for other in (modules_since(module) if initializing else all_modules())}
        return list(found.values())


def _take_over(earlier: Binding, binding: Binding) -> None:
    """After a reload, point the copies of the outdated object at the new one, so that a rollback finds them."""
    outdated = [write.slot for write in earlier.writes if write.slot.read() is earlier.after]
    binding.take_over([slot for slot in outdated if slot != earlier.slot])
    if earlier.slot == binding.slot:
        # The module was executed again in its old namespace: what the outdated binding had replaced is gone.
        binding.earlier = earlier.earlier


class Registry:
    """The features of one plugin, and those that others bring to it, in one process.

    `bundles` is called, and sources are read, when the module `trigger` is about to be imported and not before: until
    then an active registry costs one dictionary look-up for each import.
    """

    def __init__(
        self,
        *,
        trigger: str,
        bundles: Callable[[], Sequence[Bundle]],
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
        self._load_bundles = bundles
        self._warn = warn
        self._changed = changed
        self._mutex = Mutex(self._forked_midway)
        self._active = False
        self._begun = False
        self._hooked = False
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
        """Wait for the trigger module, or begin at once if it is imported already.

        Repeating it does nothing, or begins again what was interrupted.
        """
        with self._mutex.lock:
            hooks.add_hook(self._trigger, self._before_trigger, before=True)
            self._active = True
        if self._trigger in sys.modules and not self._begun:
            self._begin()

    def deactivate(self) -> None:
        """Take back every patch and every hook.

        Repeating it does nothing, or tries again what could not be put back. An interruption that comes meanwhile is
        raised at the end, when everything else has been put back.
        """
        with self._mutex.lock:
            if not self._active and not self._ledger.bindings:
                return
            hooks.remove_hook(self._trigger, self._before_trigger)
            self._withdraw_hooks()
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
        with self._mutex.lock:
            return self._ledger.status()

    def states(self) -> dict[str, State]:
        """The state of each feature by its name."""
        with self._mutex.lock:
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
        with self._mutex.lock:
            if not self._active:
                return
            if not self._begun:
                self._verify()
            if self._error is not None and self.policy.strict:
                raise self._error
            self._apply({})
            self._place_hooks()

    def _verify(self) -> None:
        """Judge all patches, and keep what is known only if that comes to its end: else the next import of the trigger
        module begins again from the start."""
        self._forget()
        started = time.perf_counter()
        try:
            self._keep(self._verified())
            self._begun = True
            self._changed(self)
        except BaseException:
            self._forget()
            raise
        finally:
            self.seconds += time.perf_counter() - started

    def _forget(self) -> None:
        self._begun = self._hooked = False
        self._withdraw_hooks()
        self._readback.release()
        self._ledger.forget()
        self.revisions = {}
        self._error = None

    def _keep(self, known: Verification) -> None:
        self._tree = known.tree
        self.revisions = dict(known.revisions)
        self._error = known.error
        self._ledger.features = known.features
        self._ledger.verdicts = dict(known.verdicts)
        self._readback.watch(known.tree)

    def _verified(self) -> Verification:
        bundles: Sequence[Bundle] = ()
        try:
            bundles = self._load_bundles()
            return self._judged(bundles)
        except VerlNpuError as error:
            if is_passing(error) or isinstance(error, DamagedError):
                raise
            self._warn(f"{error}; nothing is patched in this process")
            features = [feature for bundle in bundles for feature in bundle.features]
            failed = {patch.id: Verdict(State.FAILED, str(error)) for feature in features for patch in feature}
            return Verification(features, verdicts=failed, error=error)

    def _judged(self, bundles: Sequence[Bundle]) -> Verification:
        features = [feature for bundle in bundles for feature in bundle.features]
        for feature in features:
            feature.close(self._late)
        tree = SourceTree({})
        revisions: dict[str, Revision] = {}
        verdicts: dict[str, Verdict] = {}
        errors: list[VerlNpuError] = [*self.policy.wrong(feature.name for feature in features)]
        for judged in judge_bundles(bundles, tree):
            if judged.error is not None and not judged.bundle.owner:
                raise judged.error
            tree = tree.with_packages(judged.tree) if tree.packages else judged.tree
            revisions = {**judged.revisions, **revisions}
            errors += judged.bundle.errors
            if judged.error is not None:
                verdicts |= judged.verdicts
                errors.append(judged.error)
                continue
            for feature in judged.bundle.features:
                settled, drift = settle(feature, judged.verdicts, self.policy)
                verdicts |= settled
                errors += [drift] if drift is not None else []
        for error in errors:
            self._warn(str(error))
        return Verification(features, tree, revisions, verdicts, next(iter(errors), None))

    def _late(self, patch: Patch) -> None:
        """Say that a patch was declared when all had been judged. Raises DeclarationError under strict."""
        error = DeclarationError(
            subject=f"patch {patch.id}, declared in {getattr(patch.implementation, '__module__', 'no module')}",
            expected=f"a declaration before {self._trigger} is imported, in the module that an entry point names",
            found="one that came later",
            fix="it is left out; declare it in a feature and a distribution of its own",
        )
        if self.policy.strict:
            raise error
        self._warn(str(error))

    def _place_hooks(self) -> None:
        if self._hooked:
            return
        for patch in self._ledger.patches():
            if self._ledger.verdicts[patch.id].state in LIVE:
                guards = patch.action is Action.GUARD
                self._place_hook(patch.target.module, "before" if guards else "after")
        for feature in self.features:
            if feature.after:
                self._place_hook(feature.after, "again")
        self._hooked = True

    def _place_hook(self, module: str, kind: str) -> None:
        if (module, kind) not in self._hooks:
            run = {"before": self._before_module, "after": self._after_module, "again": self._apply_again}[kind]
            self._hooks[module, kind] = partial(run, module)
        # Again as well: what placed it before may have been interrupted.
        hooks.add_hook(module, self._hooks[module, kind], before=kind == "before")

    def _withdraw_hooks(self) -> None:
        for (module, _), hook in self._hooks.items():
            hooks.remove_hook(module, hook)
        self._hooks.clear()

    def _before_module(self, name: str, module: ModuleType) -> None:
        for patch in self._ledger.patches():
            verdict = self._ledger.verdicts[patch.id]
            if patch.action is Action.GUARD and patch.target.module == name and verdict.state in LIVE:
                self._ledger.verdicts[patch.id] = replace(verdict, state=State.APPLIED)
                patch.implementation()

    def _after_module(self, name: str, module: ModuleType) -> None:
        with self._mutex.lock:
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

    def _apply_feature(self, feature: Feature, prepared: Prepared) -> BaseException | None:
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
            for patch in (binding.patch for binding in done):
                self._ledger.verdicts[patch.id] = replace(self._ledger.verdicts[patch.id], state=State.APPLIED)
            return None
        if failed is None:
            failed = next(iter(feature))
        # The bindings of before have been taken over: to put back the new ones puts back those as well.
        self._ledger.bindings |= {binding.patch.id: binding for binding in done}
        self._ledger.fail(feature, failed, failure)
        return failure

    def _apply_again(self, name: str, module: ModuleType) -> None:
        """`module` is one that overwrites what some features patch: if it did, ours is put in its place."""
        with self._mutex.lock:
            for patch in (patch for feature in self.features if feature.after == name for patch in feature):
                beneath = self._ledger.bindings.get(patch.id)
                if beneath is None or beneath.in_force() or not comes_from(beneath.slot.read(), module):
                    continue
                binding = replace(beneath, before=beneath.slot.read(), writes=[], over=name, earlier=beneath)
                # Its target is somebody else's now; the copies that it rebound are still ours.
                beneath.writes = [write for write in beneath.writes if write.slot != beneath.slot]
                binding.write([binding.slot])
                self._ledger.bindings[patch.id] = binding
            self._changed(self)
