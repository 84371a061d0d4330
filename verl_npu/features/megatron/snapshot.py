"""What MindSpeed changes in a process, recorded beforehand so that it can be put back object by object."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ...registry.apply.slot import Owner, namespace, read_namespace

if TYPE_CHECKING:
    from argparse import Namespace

    from .interfaces import MindSpeedPatch, PatchesManager

__all__ = ["DUMMY_FILE", "Snapshot", "aliases_asleep", "drop_dummies", "own_functions_kept"]

DUMMY_FILE = "mindspeed.dummy_module.py"
"""The `__file__` of the empty modules that MindSpeed puts into sys.modules."""
_OWN = ("megatron", "mindspeed")
_GONE = object()


class Snapshot:
    """The state of torch, Megatron, MindSpeed and sys.modules at one moment.

    All attributes of Megatron's and MindSpeed's modules and classes are put back. In other modules only the names that
    MindSpeed patches are put back: it replaces its targets wherever they were imported to, and another thread may
    change the rest. `arguments` are MindSpeed's arguments of the process.
    """

    __slots__ = ("_classes", "_manager", "_modules", "_namespaces", "_patches", "_settings", "arguments")

    def __init__(self, manager: PatchesManager, arguments: Namespace) -> None:
        self._manager = manager
        self.arguments = arguments
        self._settings = dict(vars(arguments))
        self._modules = dict(sys.modules)
        self._namespaces = [
            (name, module, dict(namespace(module)))
            for name, module in self._modules.items()
            if isinstance(module, types.ModuleType)
        ]
        self._patches = {name: (patch, _copied(vars(patch))) for name, patch in manager.patches_info.items()}
        classes = {c for name, _, contents in self._namespaces if _own(name) for c in _classes_of(name, contents)}
        owners = (patch.orig_module for patch in manager.patches_info.values())
        classes |= {owner for owner in owners if isinstance(owner, type)}
        self._classes = [(one, dict(vars(one))) for one in classes]

    def restore(self) -> None:
        """Put everything back as it was. Modules that were imported in the meantime stay imported."""
        patches = dict(self._manager.patches_info)
        failed = {id(patch.final_patch_func): patch.orig_func for patch in patches.values() if patch.final_patch_func}
        names = {patch.orig_func_name for patch in patches.values() if patch.orig_func_name}
        # Newer revisions look up the patched classes in every module too, and torch.ops creates what is looked up.
        names |= {patch.orig_module_name.rpartition(".")[2] for patch in patches.values()}

        for name in [name for name in sys.modules if name not in self._modules and _is_dummy(sys.modules[name])]:
            del sys.modules[name]
        for name, module, before in self._namespaces:
            _put_back(module, before, None if _own(name) or _is_dummy(module) else names)
        for one, before in self._classes:
            _put_back(one, before, None if _own(one.__module__) else names)
        for owner, name in self._came_later(patches, names):
            original = failed.get(id(read_namespace(owner).get(name, _GONE)), _GONE)
            if original is not _GONE:
                _set(owner, name, original)

        self._manager.patches_info.clear()
        for name, (patch, state) in self._patches.items():
            vars(patch).clear()
            vars(patch).update(_copied(state))
            self._manager.patches_info[name] = patch
        vars(self.arguments).clear()
        vars(self.arguments).update(self._settings)
        for name, known in self._modules.items():
            sys.modules.setdefault(name, known)

    def _came_later(self, patches: Mapping[str, MindSpeedPatch], names: set[str]) -> Iterator[tuple[Owner, str]]:
        """Return the attributes that have no earlier state, and that may hold what a failed patch put there."""
        for name, module in list(sys.modules.items()):
            if name not in self._modules and isinstance(module, types.ModuleType):
                yield from ((module, key) for key in names & namespace(module).keys())
        known = {one for one, _ in self._classes}
        for patch in patches.values():
            if isinstance(patch.orig_module, type) and patch.orig_module not in known and patch.orig_func_name:
                yield patch.orig_module, patch.orig_func_name


@contextlib.contextmanager
def own_functions_kept(manager: PatchesManager) -> Iterator[None]:
    """At the end of the context, put back the functions that MindSpeed defines, except those that it patches."""
    defined = [
        (module, name, value)
        for module_name, module in list(sys.modules.items())
        if module_name.partition(".")[0] == "mindspeed" and isinstance(module, types.ModuleType)
        for name, value in namespace(module).items()
        if getattr(value, "__module__", None) == module_name and f"{module_name}.{name}" not in manager.patches_info
    ]
    try:
        yield
    finally:
        for module, name, value in defined:
            namespace(module)[name] = value


@contextlib.contextmanager
def aliases_asleep() -> Iterator[None]:
    """In this context the modules of transformers that stand for another one do not import it when they are asked."""
    aliases = [
        (module, namespace(module)["__getattr__"])
        for name, module in list(sys.modules.items())
        if name.startswith("transformers.") and isinstance(module, types.ModuleType) and _is_alias(module)
    ]
    for module, _ in aliases:
        namespace(module).pop("__getattr__", None)
    try:
        yield
    finally:
        for module, answer in aliases:
            namespace(module).setdefault("__getattr__", answer)


def _is_alias(module: types.ModuleType) -> bool:
    """Whether it is made by transformers itself, and from no file."""
    contents = namespace(module)
    return "__getattr__" in contents and contents.get("__file__") is None


def drop_dummies(package: str) -> None:
    """Remove MindSpeed's empty modules of `package` from sys.modules; a real package stays."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package and _is_dummy(sys.modules[name])]:
        del sys.modules[name]


def _own(module: str) -> bool:
    return module.partition(".")[0] in _OWN


def _is_dummy(module: object) -> bool:
    return isinstance(module, types.ModuleType) and namespace(module).get("__file__") == DUMMY_FILE


def _classes_of(module: str, contents: Mapping[str, object]) -> Iterator[type]:
    return (value for value in contents.values() if isinstance(value, type) and value.__module__ == module)


def _put_back(owner: Owner, before: Mapping[str, object], names: set[str] | None) -> None:
    """Give `owner` the attributes that it had `before`: all of them, or only those in `names`."""
    now = dict(read_namespace(owner))
    for key in now.keys() - before.keys():
        if (names is None or key in names) and not _is_submodule(owner, key, now[key]):
            _set(owner, key, _GONE)
    for key, value in before.items():
        if (names is None or key in names) and now.get(key, _GONE) is not value:
            _set(owner, key, value)


def _is_submodule(owner: Owner, key: str, value: object) -> bool:
    if not isinstance(owner, types.ModuleType) or not isinstance(value, types.ModuleType):
        return False
    return sys.modules.get(f"{owner.__name__}.{key}") is value


def _set(owner: Owner, key: str, value: object) -> None:
    if isinstance(owner, types.ModuleType):
        # Not through setattr: a lazy module would load itself.
        contents = namespace(owner)
        if value is _GONE:
            contents.pop(key, None)
        else:
            contents[key] = value
    elif value is _GONE:
        delattr(owner, key)
    else:
        setattr(owner, key, value)


def _copied(state: Mapping[str, object]) -> dict[str, object]:
    return {key: list(value) if isinstance(value, list) else value for key, value in state.items()}
