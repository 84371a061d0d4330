"""Copies of a target that were taken before it was patched (`from x import y`), found by identity.

Namespaces are read through `vars()` only, so no lazy module is woken and no `__getattr__` is called.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import ModuleType

from ..patch import Action
from ..source.tree import SourceTree
from .binding import MISSING, Binding, Slot, namespace

__all__ = ["all_modules", "follow_copies", "modules_since", "rebind_copies"]


def all_modules() -> Iterator[ModuleType]:
    """The modules in `sys.modules`. Some packages put other things there, which are not even asked for their class."""
    return (module for module in tuple(sys.modules.values()) if issubclass(type(module), ModuleType))


def modules_since(module: ModuleType) -> Iterator[ModuleType]:
    """The modules that can hold copies from a module that has just been executed.

    These are the module itself, those imported while it was executed, and those still being executed, which imported
    it. A scan of all modules would cost milliseconds for each patched module.
    """
    reached = False
    for other in all_modules():
        reached = reached or other is module
        if reached or getattr(namespace(other).get("__spec__"), "_initializing", False):
            yield other


def rebind_copies(binding: Binding, modules: Iterable[ModuleType], tree: SourceTree) -> None:
    """Point every copy of the patched object at the new one, and remember it for the rollback."""
    found = _copied_values if binding.patch.action is Action.SET else _copied_objects
    for slot in found(binding, modules, tree):
        slot.write(binding.after)
        binding.copies.append(slot)


def follow_copies(outdated: Binding, binding: Binding) -> None:
    """After a reload, point the copies of the outdated objects at the new ones, so that a rollback finds them."""
    if outdated is binding:
        return
    for slot in outdated.copies:
        if slot.read() is outdated.after:
            slot.write(binding.after)
            binding.copies.append(slot)


def _copied_objects(binding: Binding, modules: Iterable[ModuleType], tree: SourceTree) -> list[Slot]:
    if not callable(binding.before):
        return []
    return [
        Slot(module, key)
        for module in modules
        for key, value in tuple(namespace(module).items())
        if value is binding.before and not (module is binding.slot.owner and key == binding.slot.key)
    ]


def _copied_values(binding: Binding, modules: Iterable[ModuleType], tree: SourceTree) -> list[Slot]:
    # A value such as True is everywhere and its identity says nothing: what a module's source imports does.
    target = binding.patch.target
    return [
        Slot(module, target.name)
        for module in modules
        if namespace(module).get(target.name, MISSING) is binding.before
        and tree.imports_from(namespace(module).get("__name__", ""), target.name, target.module)
    ]
