"""Whether the object in memory is the one that the source defines: somebody may have replaced it before us."""

from __future__ import annotations

import inspect
import types

from ...errors import ApplyError
from ..patch import Action, Patch
from ..source.definition import Kind
from ..source.tree import SourceTree
from .slot import MISSING, Slot, namespace, read_namespace

__all__ = ["belongs", "check_live", "comes_from"]

_TYPES = {
    Kind.FUNCTION: types.FunctionType,
    Kind.COROUTINE: types.FunctionType,
    Kind.CLASS: type,
    Kind.PROPERTY: property,
    Kind.STATICMETHOD: staticmethod,
    Kind.CLASSMETHOD: classmethod,
}


def check_live(patch: Patch, slot: Slot, tree: SourceTree, module: types.ModuleType) -> None:
    """Raise ApplyError if the live object is not the one that the source defines."""
    value = slot.read()
    if patch.action is Action.ADD:
        if value is not MISSING:
            raise _unexpected(patch, "nothing there", f"{value!r}")
        return
    if value is MISSING:
        raise _unexpected(patch, f"{slot.key} in the own namespace of {slot.owner!r}", "nothing there")
    if _is_where_the_source_has_it(value, patch, module):
        # The usual case: no source need be parsed for it.
        return
    definition = tree.definition(patch.target)
    if definition is None or definition.kind in (Kind.IMPORTED, Kind.ASSIGNED):
        # What such a name holds is not written there: the fingerprint of the statement has to do.
        return
    if definition.plain and not isinstance(value, _TYPES[definition.kind]):
        raise _unexpected(patch, f"the {definition.kind} defined in {module.__file__}", f"{value!r}")
    code = getattr(inspect.unwrap(_inner(value)), "__code__", None)
    # What a decorator made of it may have no code of its own; then the source's fingerprint has to do.
    if definition.plain or code is not None:
        where = f"{value!r}" if code is None else f"{code.co_name} from {code.co_filename}"
        raise _unexpected(patch, f"the {definition.kind} defined in {module.__file__}", where)


def _is_where_the_source_has_it(value: object, patch: Patch, module: types.ModuleType) -> bool:
    if isinstance(value, type):
        # A module that `python -m` runs is called __main__.
        known = (patch.target.module, module.__name__)
        return value.__module__ in known and value.__qualname__ == patch.target.qualname
    function = inspect.unwrap(_inner(value))
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    # A closure of the same name in the same file is not the target; before 3.11 code does not keep its full name.
    name = getattr(code, "co_qualname", function.__qualname__)
    return (code.co_filename, name) == (module.__file__, patch.target.qualname)


def comes_from(value: object, module: types.ModuleType) -> bool:
    """Whether a function, method or class was defined in `module`."""
    return getattr(_inner(value), "__module__", None) == module.__name__


def belongs(value: object, expression: str, module: types.ModuleType) -> bool:
    """Whether a value is what `expression` names in `module`, by identity, or a function or class made in `module`."""
    if value is MISSING:
        return False
    contents = namespace(module)
    inner = _inner(value)
    named: object = module
    for part in expression.split("."):
        named = read_namespace(named).get(part, MISSING) if isinstance(named, types.ModuleType | type) else MISSING
    # A wrapper that was made by functools.wraps has the name of what it wraps, but its own globals.
    own = getattr(inner, "__globals__", None) is contents
    return own or (named is not MISSING and (named is value or named is inner)) or comes_from(value, module)


def _inner(value: object) -> types.FunctionType:
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        value = value.fget
    return value  # type: ignore[return-value]  # what is no function shows by having no code


def _unexpected(patch: Patch, expected: str, found: str) -> ApplyError:
    return ApplyError(
        subject=f"patch {patch.id} of {patch.target}",
        expected=expected,
        found=found[:300],
        fix="another package patches the same target: load only one of the two",
    )
