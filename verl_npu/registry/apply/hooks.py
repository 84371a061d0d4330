"""Hooks that run after a module is imported, and that cannot lose a patch.

They are modelled on the hooks of the package wrapt, which have three faults. They are removed before they run, so a
hook that fails once never runs again. If the module is still being executed, they run at once, on a half-initialised
module. And a reload of the module loses them. A hook of this module stays until it is removed, waits until the module
has been executed, and runs again after a reload. Both kinds of hooks can be used on one module, in either order.

Every `import torch` loads this module. It imports neither typing nor ast, which would double the time that it takes.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import threading
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType, ModuleType
    from typing import Any

    Hook = Callable[[ModuleType], None]


class Inside(threading.local):
    """Named locks that detect reentrancy, one set for each thread. While a thread executes a function that may be
    entered again by the same thread, the thread holds the lock with the function's name.

    Locks are used instead of flags because a `with` statement releases a lock even after an interruption. A flag would
    stay set if an interruption came between setting the flag and clearing it.
    """

    def __init__(self) -> None:
        self._locks: dict[str, threading.Lock] = {}

    def __getitem__(self, name: str) -> threading.Lock:
        return self._locks.setdefault(name, threading.Lock())


_asking = Inside()
_before: dict[str, list[Hook]] = {}
_after: dict[str, list[Hook]] = {}
_lock = threading.RLock()


def add_hook(name: str, hook: Hook, *, before: bool = False) -> None:
    """Call `hook(module)` after each execution of the module `name`: immediately if the module is already loaded, and
    again after each reload.

    With `before`, call the hook just before the module is executed, and never for a module that is already loaded. If
    the hook raises an error, every import of the module raises the error, too. Adding a hook twice has no effect.
    """
    with _lock:
        placed = (_before if before else _after).setdefault(name, [])
        if hook not in placed:
            placed.append(hook)
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
    """Remove `hook` from the module `name`, if the module has this hook. Removing the last hook also removes the
    import finder."""
    with _lock:
        for hooks in (_before, _after):
            if hook in hooks.get(name, ()):
                hooks[name].remove(hook)
                if not hooks[name]:
                    del hooks[name]
        if not _before and not _after and _finder in sys.meta_path:
            sys.meta_path.remove(_finder)


def _put_finder_first() -> None:
    # A finder in front of this one, such as typeguard's, would find a hooked module without calling this one.
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    sys.meta_path.insert(0, _finder)


def _run(hooks: dict[str, list[Hook]], name: str, module: ModuleType) -> None:
    for hook in tuple(hooks.get(name, ())):
        hook(module)


class _Finder:
    """An import finder. It wraps the spec that other finders return for a module, so that hooks run when the module is
    executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if sys.meta_path[0] is not self and sys.meta_path.count(self):
            with _lock:
                _put_finder_first()
        if fullname not in _after and fullname not in _before:
            return None
        # Another finder of this kind (wrapt, ddtrace) may ask all finders in turn, and so call us again.
        asking = _asking[fullname]
        if asking.locked():
            return None
        with asking:
            others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
            specs = (finder.find_spec(fullname, path, target) for finder in others)
            spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = spec.loader if isinstance(spec.loader, _HookedLoader) else _HookedLoader(spec)  # type: ignore[assignment]
        return spec


class _WatchedSpec(importlib.machinery.ModuleSpec):
    """The spec of a module that was already being executed when its hook was added.

    importlib ends every execution by setting `spec._initializing` to False. The hooks run at that moment, because the
    next import might be too late.
    """

    @property
    def _initializing(self) -> bool:
        return bool(self.__dict__["_initializing"])

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        self.__dict__["_initializing"] = value
        module = sys.modules.get(self.name)
        # After a failed execution, the module is gone and there is nothing to patch.
        if value or module is None:
            return
        self.__class__ = importlib.machinery.ModuleSpec  # type: ignore[assignment]
        try:
            _run(_after, self.name, module)
        except BaseException:
            # importlib does the same if the execution fails. Otherwise the next import would find it unpatched.
            sys.modules.pop(self.name, None)
            raise


def _watch(spec: object) -> None:
    if type(spec) is importlib.machinery.ModuleSpec:
        spec.__class__ = _WatchedSpec


def _renew_lock() -> None:
    # Another thread of the parent may have held it during the fork, and does not exist in the child.
    global _lock
    _lock = threading.RLock()


class _HookedLoader:
    """A substitute for a module's loader, until the module is executed. It runs the hooks before and after the module
    is executed.

    It first puts the real loader back, because other code reads the type and the resources of a module's loader.
    """

    def __init__(self, spec: importlib.machinery.ModuleSpec) -> None:
        inner: Any = spec.loader
        self._spec, self._inner = spec, inner
        if hasattr(inner, "exec_module"):
            self.exec_module = self._exec_module
        else:
            # An old kind of loader: importlib calls load_module only on a loader without exec_module.
            self.load_module = self._load_module
        if type(inner) is importlib.machinery.SourceFileLoader:
            self.get_code = self._get_code

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        create = getattr(self._inner, "create_module", None)
        return None if create is None else create(spec)

    def _exec_module(self, module: ModuleType) -> None:
        self._withdraw(module)
        # The spec's name, because a module may change its own __name__.
        name = self._spec.name
        _run(_before, name, module)
        self._inner.exec_module(module)
        # A module may replace itself in sys.modules, as transformers' lazy modules do.
        _run(_after, name, sys.modules.get(name, module))

    def _load_module(self, name: str) -> ModuleType:
        # Such a loader makes the module itself, so hooks that run before it get an empty one of that name.
        _run(_before, name, types.ModuleType(name))
        module: ModuleType = self._inner.load_module(name)
        self._withdraw(module)
        _run(_after, name, sys.modules.get(name, module))
        return module

    def _get_code(self, name: str) -> CodeType | None:
        # runpy calls this: `python -m` executes the code itself, as __main__, and never calls exec_module.
        self._spec.loader = self._inner
        code: CodeType | None = self._inner.get_code(name)
        if code is None:
            return None
        return _with_hooks_before_main(code, self._inner.get_data(self._inner.get_filename(name)), name)

    def _withdraw(self, module: ModuleType) -> None:
        for spec in (self._spec, module.__spec__):
            if getattr(spec, "loader", None) is self:
                spec.loader = self._inner  # type: ignore[union-attr]  # anything with a loader is a spec
        if getattr(module, "__loader__", None) is self:
            module.__loader__ = self._inner


def _with_hooks_before_main(code: CodeType, source: bytes, name: str) -> CodeType:
    """Return the code of the module `name`, with a call of `program_starts(name)` inserted before its main part.

    `python -m pkg.mod` executes the code as `__main__`, and its last statement runs the whole job. So a hook after the
    last statement would be too late. The call is inserted, in memory, before each `if __name__ == "__main__":`. Code
    without that test is returned unchanged.
    """
    import ast

    tree = ast.parse(source)
    starts = [index for index, node in enumerate(tree.body) if _is_main_test(ast, node)]
    if not starts:
        return code
    for index in reversed(starts):
        call = f"__import__({__name__!r}, fromlist=['program_starts']).program_starts({name!r})"
        tree.body.insert(index, ast.copy_location(ast.parse(call).body[0], tree.body[index]))
    return compile(ast.fix_missing_locations(tree), code.co_filename, "exec", dont_inherit=True)


def _is_main_test(ast: Any, node: Any) -> bool:
    if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
        return False
    sides = (node.test.left, *node.test.comparators)
    return any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides) and any(
        isinstance(side, ast.Constant) and side.value == "__main__" for side in sides
    )


def program_starts(name: str) -> None:
    """Run the hooks of the module `name` if Python runs this module as the main program. The module calls this
    function after its own definitions."""
    main = sys.modules.get("__main__")
    if main is not None and getattr(getattr(main, "__spec__", None), "name", None) == name:
        _run(_after, name, main)


_finder = _Finder()
os.register_at_fork(after_in_child=_renew_lock)
