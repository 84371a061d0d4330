"""The registry of a process. It judges features, applies their patches when modules are imported, and undoes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType

from ...damage import is_temporary
from ...errors import DamagedError, DeclarationError, RegistryError
from ..judge.bundles import judge_bundles
from ..judge.lock import Revision
from ..judge.policy import Policy, settle
from ..judge.verdict import Verdict
from ..patch import Action, Bundle, Feature, Patch
from ..source.named import PatchModule
from ..source.tree import SourceTree
from ..state import RegistryActivity, State, feature_state
from . import hooks
from .ledger import Ledger
from .lifecycle import Mutex
from .readback import Readback
from .replacement import Conventions


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of judging all patches once."""

    features: Sequence[Feature]
    tree: SourceTree = field(default_factory=lambda: SourceTree({}))
    revisions: Mapping[str, Revision] = field(default_factory=dict)
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    error: RegistryError | None = None
    """The first error. In strict mode, each import of the trigger module raises it."""


_NONE = Conventions()


class Registry:
    """The features of one plugin, and of the distributions that contribute features to it, in one process.

    A `Lifecycle` calls `begin` and `end` while holding the registry's mutex. Only `begin` calls `bundles` and reads
    source code.
    """

    def __init__(
        self,
        *,
        mutex: Mutex,
        bundles: Callable[[], Sequence[Bundle]],
        policy: Policy,
        warn: Callable[[str], None],
        changed: Callable[[], None] = lambda: None,
        conventions: Conventions = _NONE,
        patch_modules: Sequence[PatchModule] = (),
    ) -> None:
        """Create a registry that does nothing until `begin` is called.

        `conventions` are facts about the decorators of the upstreams. `patch_modules` are the upstream modules that
        patch other packages. The registry checks whether their patches have an effect.
        """
        self.policy = policy
        self.seconds = 0.0
        self._mutex = mutex
        self._load_bundles = bundles
        self._warn = warn
        self._changed = changed
        self._known: Verification | None = None
        self._hooked = False
        self._hooks: dict[tuple[str, str], hooks.Hook] = {}
        self._ledger = Ledger(policy, conventions, warn)
        self._readback = Readback(patch_modules, self._ledger, policy, warn, changed)

    @property
    def features(self) -> Sequence[Feature]:
        """The features of this registry. They are known only after their patches have been judged."""
        return self._ledger.features

    @property
    def revisions(self) -> Mapping[str, Revision]:
        """The revision of each upstream, keyed by the upstream's name. The mapping is empty until `begin` has been
        called."""
        return {} if self._known is None else self._known.revisions

    @property
    def tainted(self) -> tuple[str, ...]:
        """The features that have drifted and were applied anyway, because the user forced them."""
        return tuple(sorted({p.feature for p in self._ledger.patches() if self._ledger.verdicts[p.id].forced}))

    def begin(self) -> None:
        """Judge the patches. Apply the patches whose modules are already loaded, and register hooks that apply the
        others when their modules are imported.

        A second call resumes interrupted work. In strict mode, every call raises the first error.
        """
        known = self._known or self._judge()
        if known.error is not None and self.policy.strict:
            raise known.error
        self._apply({})
        if not self._hooked:
            self._place_hooks()
            self._hooked = True

    def end(self) -> None:
        """Undo every patch, and remove every hook.

        A second call retries the patches that could not be undone. If this method is interrupted, it undoes the
        remaining patches before it raises the exception that interrupted it.
        """
        if self._known is None and not self._ledger.bindings:
            return
        self._withdraw_hooks()
        interruption = self._ledger.end()
        self._readback.release()
        self._known = None
        self._changed()
        if interruption is not None:
            raise interruption

    def abandon(self) -> None:
        """Mark the pending patches as failed. Called in a forked child process if another thread of the parent process
        was patching during the fork."""
        self._ledger.abandon("this process was forked while another thread of its parent was patching")

    def status(self) -> dict[str, Verdict]:
        """Return the state of each patch, as a mapping from patch ids to states. The states are read from the live
        objects."""
        with self._mutex.lock:
            return {id: self._readback.settled(verdict) for id, verdict in self._ledger.status().items()}

    def states(self) -> dict[str, State]:
        """Return the state of each feature, as a mapping from names to states."""
        return self._states(self.status())

    def _states(self, status: Mapping[str, Verdict]) -> dict[str, State]:
        return {f.name: feature_state(status[patch.id].state for patch in f) for f in self.features}

    def activity(self) -> RegistryActivity:
        """Return the registry's activity in this process as plain data for a manifest."""
        status = self.status()
        states = self._states(status)
        return {
            "upstreams": {name: revision.as_json() for name, revision in self.revisions.items()},
            "features": {
                feature.name: {
                    "owner": feature.owner,
                    "state": str(states[feature.name]),
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
            "natives": self._readback.entries(),
            "tainted": list(self.tainted),
            "seconds": round(self.seconds, 6),
        }

    def _judge(self) -> Verification:
        """Judge all patches, and keep the result. If this is interrupted, nothing is kept."""
        started = time.perf_counter()
        self._withdraw_hooks()
        self._readback.release()
        try:
            known = self._verified()
            self._ledger.verdicts = dict(known.verdicts)
            self._ledger.features = known.features
            self._ledger.tree = known.tree
            self._readback.watch(known.tree)
            self._known = known
        finally:
            self.seconds += time.perf_counter() - started
        self._changed()
        return known

    def _verified(self) -> Verification:
        bundles: Sequence[Bundle] = ()
        try:
            bundles = self._load_bundles()
            return self._judged(bundles)
        except RegistryError as error:
            if is_temporary(error) or isinstance(error, DamagedError):
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
        errors: list[RegistryError] = [*self.policy.wrong(feature.name for feature in features)]
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
        """Report a patch that was declared after verl-npu had decided which patches to apply. In strict mode, raises
        DeclarationError."""
        error = DeclarationError(
            subject=f"patch {patch.id}, declared in {getattr(patch.implementation, '__module__', 'no module')}",
            found="this patch is ignored, because it was declared after verl-npu had decided which patches to apply",
            fix="declare the patch in the module of your own feature, which your entry point must import",
        )
        if self.policy.strict:
            raise error
        self._warn(str(error))

    def _place_hooks(self) -> None:
        for patch in self._ledger.live():
            self._place_hook(patch.target.module, "before" if patch.action is Action.GUARD else "after")
        for feature in self.features:
            if feature.after:
                self._place_hook(feature.after, "again")

    def _place_hook(self, module: str, kind: str) -> None:
        run = {"before": self._before_module, "after": self._after_module, "again": self._apply_again}[kind]
        # Add it even if it is known, because an earlier attempt may have been interrupted.
        hook = self._hooks.setdefault((module, kind), partial(run, module))
        hooks.add_hook(module, hook, before=kind == "before")

    def _withdraw_hooks(self) -> None:
        for (module, _), hook in self._hooks.items():
            hooks.remove_hook(module, hook)
        self._hooks.clear()
        self._hooked = False

    def _before_module(self, name: str, module: ModuleType) -> None:
        self._ledger.guard(name)

    def _after_module(self, name: str, module: ModuleType) -> None:
        with self._mutex.lock:
            self._apply({name: module})
            self._changed()

    def _apply_again(self, name: str, module: ModuleType) -> None:
        """Apply patches again if `module` has overwritten them."""
        with self._mutex.lock:
            self._ledger.write_over(name, module)
            self._changed()

    def _apply(self, executed: Mapping[str, ModuleType]) -> None:
        started = time.perf_counter()
        errors = self._ledger.apply(executed)
        self.seconds += time.perf_counter() - started
        for error in errors:
            if self.policy.strict or not isinstance(error, Exception):
                raise error
