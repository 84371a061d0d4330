"""Post-import hooks that cannot lose a patch.

wrapt's hooks were the model and are not used: they are taken off the list before they run, so a hook that fails
once is silent ever after; they fire at once on a module that is half initialised; and a reload loses them. Here a
hook stays until it is removed, waits for a module that is still being executed, and runs again on reload. Both kinds
live on one module, in either order.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import threading

from . import loader

# This module is part of every `import torch`; typing alone would double what it costs.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    Hook = Callable[[ModuleType], None]

__all__ = ["add_hook", "remove_hook"]

_before: dict[str, list[Hook]] = {}
_after: dict[str, list[Hook]] = {}
_lock = threading.RLock()


def add_hook(name: str, hook: Hook, *, before: bool = False) -> None:
    """Call `hook(module)` whenever the module `name` has been executed: now if it has been, and on each reload.

    With `before`, the hook is called just before the module is executed; never for one that is already there. What a
    hook raises is raised by the import, every time.
    """
    with _lock:
        (_before if before else _after).setdefault(name, []).append(hook)
        if sys.meta_path[:1] != [_finder]:
            _put_finder_first()
        module = sys.modules.get(name)
    if module is None or before:
        return
    spec = getattr(module, "__spec__", None)
    if getattr(spec, "_initializing", False):
        _watch(spec)
    else:
        hook(module)


def remove_hook(name: str, hook: Hook) -> None:
    """Take `hook` off `name`; nothing happens if it is not there. The last one takes the finder with it."""
    with _lock:
        for hooks in (_before, _after):
            if hook in hooks.get(name, ()):
                hooks[name].remove(hook)
                if not hooks[name]:
                    del hooks[name]
        if not _before and not _after and _finder in sys.meta_path:
            sys.meta_path.remove(_finder)


def _put_finder_first() -> None:
    # A finder that was put before ours (typeguard's) would find a hooked module, and ours would not be asked.
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    sys.meta_path.insert(0, _finder)


def _run(hooks: dict[str, list[Hook]], name: str, module: ModuleType) -> None:
    for hook in tuple(hooks.get(name, ())):
        hook(module)


def _run_before(name: str, module: ModuleType) -> None:
    _run(_before, name, module)


def _run_after(name: str, module: ModuleType) -> None:
    _run(_after, name, module)


class _Finder:
    """Finds nothing itself: lets the other finders find a hooked module, and puts the hooks around its execution."""

    def __init__(self) -> None:
        self._busy = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if sys.meta_path[0] is not self and sys.meta_path.count(self):
            with _lock:
                _put_finder_first()
        if fullname not in _after and fullname not in _before:
            return None
        # Another finder of this kind (wrapt, ddtrace) may ask all finders in turn, and so come back to us.
        if fullname in getattr(self._busy, "names", ()):
            return None
        self._busy.names = {*getattr(self._busy, "names", ()), fullname}
        try:
            spec = _found_by_others(self, fullname, path, target)
        finally:
            self._busy.names = self._busy.names - {fullname}
        if spec is not None and spec.loader is not None:
            spec.loader = loader.surround(spec.loader, _run_before, _run_after)
        return spec


def _found_by_others(
    me: _Finder, fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> importlib.machinery.ModuleSpec | None:
    for finder in tuple(sys.meta_path):
        find_spec = getattr(finder, "find_spec", None)
        if finder is me or find_spec is None:
            continue
        spec: importlib.machinery.ModuleSpec | None = find_spec(fullname, path, target)
        if spec is not None:
            return spec
    return None


class _WatchedSpec(importlib.machinery.ModuleSpec):
    """The spec of a module that was being executed when its hook was added.

    importlib ends every execution with `spec._initializing = False`, so that is the moment to run the hooks; polling
    for it at later imports could come too late.
    """

    @property
    def _initializing(self) -> bool:
        return bool(self.__dict__["_initializing"])

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        self.__dict__["_initializing"] = value
        module = sys.modules.get(self.name)
        # After a failed execution the module is no longer there, and there is nothing to patch.
        if value or module is None:
            return
        self.__class__ = importlib.machinery.ModuleSpec  # type: ignore[assignment]
        try:
            _run(_after, self.name, module)
        except BaseException:
            # As importlib does for a module whose execution fails; else the next import would find it, unpatched.
            sys.modules.pop(self.name, None)
            raise


def _watch(spec: object) -> None:
    if type(spec) is importlib.machinery.ModuleSpec:
        spec.__class__ = _WatchedSpec


def _renew_lock() -> None:
    # Another thread of the parent may have held it at the fork; that thread does not exist in the child.
    global _lock
    _lock = threading.RLock()


_finder = _Finder()
os.register_at_fork(after_in_child=_renew_lock)
