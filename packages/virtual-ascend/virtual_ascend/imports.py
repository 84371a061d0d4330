"""Hooks that run when a module is imported: before its code is executed, or right after.

wrapt offers only hooks that run afterwards, but a stub CANN must exist before torch_npu's code is executed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

Hook = Callable[[ModuleType], None]

_before: dict[str, list[Hook]] = {}
_after: dict[str, list[Hook]] = {}


def before(name: str, hook: Hook) -> None:
    """Call `hook` with the module before the module's code is executed. If the module is already imported, the hook is
    never called."""
    _before.setdefault(name, []).append(hook)
    _watch()


def after(name: str, hook: Hook) -> None:
    """Call `hook` with the module right after the module's code is executed. If the module is already imported, the
    hook is called at once."""
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        hook(module)
        return
    _after.setdefault(name, []).append(hook)
    _watch()


def _watch() -> None:
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds modules with the other finders, and makes `_Loader` load them."""

    def __init__(self) -> None:
        self._searching: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self._searching or not (fullname in _before or fullname in _after):
            return None
        self._searching.add(fullname)
        try:
            spec = find_spec(fullname)
        finally:
            self._searching.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = module.__loader__ = self._loader
        for hook in _before.get(module.__name__, ()):
            hook(module)
        self._loader.exec_module(module)
        for hook in _after.get(module.__name__, ()):
            hook(module)
