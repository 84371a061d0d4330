"""Copies of a target that were taken before it was patched, found by identity.

A copy that a module took (`from x import y`) is rebound. One in a class body, a container, a partial or a default
cannot be rebound safely: it is named, and stays upstream's. Namespaces are read through `vars()` only, so no lazy
module is woken and no `__getattr__` is called.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CellType, FrameType, FunctionType, MethodType, ModuleType
from typing import cast

from ..patch import Action
from ..source.tree import SourceTree
from .binding import Binding
from .slot import MISSING, Slot, namespace, read_namespace

__all__ = ["all_modules", "find_copies", "modules_since"]


def all_modules() -> Iterator[ModuleType]:
    """The modules in `sys.modules`. Some packages put other things there, which are not even asked for their class."""
    return (module for module in tuple(sys.modules.values()) if issubclass(type(module), ModuleType))


def modules_since(module: ModuleType) -> Iterator[ModuleType]:
    """The modules that can hold copies from a module that has just been executed.

    These are the module itself, those imported while it was executed, and those still being executed, which imported
    it. A scan of all modules would cost milliseconds for each patched module.
    """
    found = {id(other): other for other in _being_executed()}
    # The newest modules are the last ones of sys.modules.
    for other in reversed(tuple(sys.modules.values())):
        if issubclass(type(other), ModuleType):
            found[id(other)] = other
        if other is module:
            break
    return iter(found.values())


def _being_executed() -> Iterator[ModuleType]:
    """The modules whose own code is on the stack of some thread."""
    for frame in tuple(sys._current_frames().values()):
        current: FrameType | None = frame
        while current is not None:
            if current.f_code.co_name == "<module>":
                module = sys.modules.get(current.f_globals.get("__name__", ""))
                if module is not None and issubclass(type(module), ModuleType):
                    yield module
            current = current.f_back


def find_copies(bindings: Sequence[Binding], modules: Iterable[ModuleType], tree: SourceTree) -> dict[str, list[Slot]]:
    """Find the modules' own names for what `bindings` are about to replace, by the id of the patch.

    Copies that cannot be rebound are noted in each binding's `unreached`; they are looked for in the modules of the
    upstreams and in the program itself. All bindings are looked for in one pass over the modules.
    """
    objects = {id(b.before): b for b in bindings if b.patch.action is not Action.SET and callable(b.before)}
    values = [b for b in bindings if b.patch.action is Action.SET]
    found: dict[str, list[Slot]] = {binding.patch.id: [] for binding in bindings}
    left: dict[str, list[str]] = {binding.patch.id: [] for binding in bindings}
    seen: set[int] = set()
    for module in modules:
        contents = namespace(module)
        for binding, slot in _names(module, objects):
            found[binding.patch.id].append(slot)
        if objects and _is_upstreams(contents, tree):
            holders = [(key, value) for key, value in tuple(contents.items()) if _CAN_HOLD[type(value)]]
            for key, value in holders:
                if id(value) not in seen:
                    seen.add(id(value))
                    for binding, where in _inside(value, objects):
                        left[binding.patch.id].append(f"{contents.get('__name__')}.{key}{where}")
        for binding in values:
            if _copies_value(binding, module, tree):
                found[binding.patch.id].append(Slot(module, binding.patch.target.name))
    for binding in bindings:
        binding.unreached = tuple(left[binding.patch.id])
    return found


def _names(module: ModuleType, objects: Mapping[int, Binding]) -> Iterator[tuple[Binding, Slot]]:
    contents = namespace(module)
    if not _holds(contents.values(), objects):
        return
    for key, value in tuple(contents.items()):
        binding = objects.get(id(value))
        if binding is not None and not (module is binding.slot.owner and key == binding.slot.key):
            yield binding, Slot(module, key)


def _holds(values: Iterable[object], objects: Mapping[int, Binding]) -> bool:
    # Hundreds of thousands of values are looked at, so this loop is one of the interpreter's own.
    return not objects.keys().isdisjoint(map(id, tuple(values)))


def _copies_value(binding: Binding, module: ModuleType, tree: SourceTree) -> bool:
    # A value such as True is everywhere and its identity says nothing: what a module's source imports does.
    target = binding.patch.target
    contents = namespace(module)
    return contents.get(target.name, MISSING) is binding.before and tree.imports_from(
        str(contents.get("__name__", "")), target.name, target.module
    )


_HOLDERS = frozenset({dict, list, tuple, functools.partial, FunctionType})


def _is_upstreams(contents: Mapping[str, object], tree: SourceTree) -> bool:
    name = str(contents.get("__name__", ""))
    return name == "__main__" or tree.covers(name.partition(".")[0])


class _Kinds(dict[type, bool]):
    """Whether an object of a type can hold others, by its type: tens of thousands of objects are asked for it.

    By type and not by isinstance, which asks the __class__ of a lazy object and may wake it.
    """

    def __missing__(self, kind: type) -> bool:
        self[kind] = answer = kind in _HOLDERS or issubclass(kind, type)
        return answer


_CAN_HOLD = _Kinds()


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # looking is what raises
    except ValueError:
        return False
    return True


def _inside(value: object, objects: Mapping[int, Binding]) -> Iterator[tuple[Binding, str]]:
    """What one value of a module holds of the objects: entries, class attributes, partials, defaults, closures."""
    for where, item in _items(value, objects):
        binding = objects.get(id(item))
        if binding is not None and not (value is binding.slot.owner and where == f".{binding.slot.key}"):
            yield binding, where


def _items(value: object, objects: Mapping[int, Binding]) -> Iterable[tuple[str, object]]:
    if isinstance(value, dict):
        return [(f"[{k!r}]", v) for k, v in tuple(value.items())] if _holds(value.values(), objects) else ()
    if isinstance(value, list | tuple):
        return [(f"[{index}]", item) for index, item in enumerate(value)] if _holds(value, objects) else ()
    if isinstance(value, type):
        return _attributes(value, objects)
    if isinstance(value, functools.partial):
        return [(" (partial)", item) for item in (value.func, *value.args, *value.keywords.values())]
    if isinstance(value, FunctionType):
        kept = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        cells = [(" (closure)", cell.cell_contents) for cell in value.__closure__ or () if _is_filled(cell)]
        return [*((" (default)", item) for item in kept), *cells]
    return ()


def _attributes(owner: type, objects: Mapping[int, Binding]) -> Iterable[tuple[str, object]]:
    contents = read_namespace(owner)
    methods = [(k, cast(MethodType, v)) for k, v in contents.items() if type(v) in (staticmethod, classmethod)]
    inner = [(f".{key}", method.__func__) for key, method in methods]
    if not inner and not _holds(contents.values(), objects):
        return ()
    return [*inner, *((f".{key}", item) for key, item in contents.items())]
