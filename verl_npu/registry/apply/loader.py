"""The loader of a hooked module, with the hooks put around the execution of the module."""

from __future__ import annotations

import importlib.machinery
import sys
import types

# This module is part of every `import torch`; typing alone would double what it costs.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    Run = Callable[[str, ModuleType], None]

__all__ = ["surround"]

_MARK = "_surrounded"

# importlib makes one such object for each module, with a namespace of its own.
_OWN = (
    importlib.machinery.SourceFileLoader,
    importlib.machinery.SourcelessFileLoader,
    importlib.machinery.ExtensionFileLoader,
)


def surround(loader: Any, before: Run, after: Run) -> Any:
    """Return a loader that calls `before(name, module)` and `after(name, module)` around each execution."""
    if type(loader) in _OWN:
        return _in_place(loader, before, after)
    return loader if isinstance(loader, _Around) else _Around(loader, before, after)


def _in_place(loader: Any, before: Run, after: Run) -> Any:
    # The method is replaced on this one object. A proxy loader would be seen by whoever asks for the loader's type or
    # resources (importlib.resources, inspect, pkgutil).
    if getattr(loader.exec_module, _MARK, False):
        return loader
    execute = loader.exec_module
    compiled = loader.get_code
    executing = False

    def exec_module(module: ModuleType) -> None:
        nonlocal executing
        name = _name(module)
        before(name, module)
        executing = True
        try:
            execute(module)
        finally:
            executing = False
        # A module may put another object in its own place, as transformers' lazy modules do.
        after(name, sys.modules.get(name, module))

    def get_code(name: str) -> types.CodeType | None:
        # Asked from outside it is runpy's: `python -m` executes the code itself, as __main__, and never exec_module.
        code: types.CodeType | None = compiled(name)
        if executing or code is None or type(loader) is not importlib.machinery.SourceFileLoader:
            return code
        from . import main

        return main.instrumented(code, loader.get_data(loader.get_filename(name)), name, after)

    setattr(exec_module, _MARK, True)
    loader.exec_module = exec_module
    loader.get_code = get_code
    return loader


def _name(module: ModuleType) -> str:
    # The spec's name: a module may set its own __name__ while it is executed, or before.
    spec = module.__spec__
    return module.__name__ if spec is None else spec.name


class _Around:
    """Stands before a loader that serves many modules (zip archives, pytest), or is itself a proxy (wrapt's).

    It takes itself out of the module before the module is executed, so that nobody sees it afterwards.
    """

    def __init__(self, inner: Any, before: Run, after: Run) -> None:
        self._inner = inner
        self._before = before
        self._after = after
        if not hasattr(inner, "exec_module"):
            # A loader of the old kind. importlib calls load_module only of one that has no exec_module.
            self.load_module = self._load_module
        else:
            self.exec_module = self._exec_module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        create = getattr(self._inner, "create_module", None)
        return None if create is None else create(spec)

    def _exec_module(self, module: ModuleType) -> None:
        self._withdraw(module)
        name = _name(module)
        self._before(name, module)
        self._inner.exec_module(module)
        self._after(name, sys.modules.get(name, module))

    def _load_module(self, name: str) -> ModuleType:
        # Such a loader makes the module itself, so what runs before gets an empty one of that name.
        self._before(name, types.ModuleType(name))
        module: ModuleType = self._inner.load_module(name)
        self._withdraw(module)
        self._after(name, sys.modules.get(name, module))
        return module

    def _withdraw(self, module: ModuleType) -> None:
        if getattr(module.__spec__, "loader", None) is self:
            module.__spec__.loader = self._inner  # type: ignore[union-attr]  # a spec that has a loader is one
        if getattr(module, "__loader__", None) is self:
            module.__loader__ = self._inner
