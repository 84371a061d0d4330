"""The live side of a target: finding its slot, writing it, reading it back, and putting everything as it was."""

from __future__ import annotations

import builtins
import dis
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ...errors import ApplyError
from ..patch import Action, Patch
from ..source.target import Target
from ..source.tree import Kind, SourceTree

__all__ = [
    "MISSING",
    "Binding",
    "Slot",
    "build",
    "check_live",
    "check_names",
    "comes_from",
    "find_slot",
    "namespace",
]


class _Missing:
    def __repr__(self) -> str:
        return "<not there>"


MISSING: Final = _Missing()


@dataclass(frozen=True, slots=True)
class Slot:
    """A key in the own namespace of a module or class."""

    owner: Any
    key: str

    def read(self) -> Any:
        """What the owner's own namespace holds, unbound; MISSING where the key is inherited or not there."""
        return namespace(self.owner).get(self.key, MISSING)

    def write(self, value: Any) -> None:
        """Set the key, or delete it where `value` is MISSING."""
        if isinstance(self.owner, types.ModuleType):
            # Past any __setattr__ of a lazy module: what is wanted is this very key.
            contents = namespace(self.owner)
            if value is MISSING:
                contents.pop(self.key, None)
            else:
                contents[self.key] = value
        elif value is MISSING:
            delattr(self.owner, self.key)
        else:
            setattr(self.owner, self.key, value)


@dataclass(slots=True)
class Binding:
    """One applied patch: what was there before, what is there now, and the copies that were rebound with it."""

    patch: Patch
    slot: Slot
    before: Any
    after: Any
    copies: list[Slot] = field(default_factory=list)
    beneath: Binding | None = None
    """The binding that was there before somebody overwrote the target and we overwrote them."""

    def in_force(self) -> bool:
        """Whether the target is still ours, by identity."""
        return self.slot.read() is self.after

    def restore(self) -> list[str]:
        """Put back the target and all copies; what somebody else has overwritten since is left and named."""
        left = self._put_back((*self.copies, self.slot))
        # Its target is ours no more, but the copies that it rebound still are.
        return left if self.beneath is None else left + self.beneath._put_back(self.beneath.copies)

    def _put_back(self, slots: Sequence[Slot]) -> list[str]:
        left = []
        for slot in slots:
            if slot.read() is self.after:
                slot.write(self.before)
            else:
                left.append(f"{getattr(slot.owner, '__name__', slot.owner)}.{slot.key}")
        return left


def namespace(owner: Any) -> Any:
    """The own namespace of a module or class, without waking a lazy module."""
    if isinstance(owner, types.ModuleType):
        return object.__getattribute__(owner, "__dict__")
    return type.__getattribute__(owner, "__dict__")


def find_slot(module: types.ModuleType, target: Target) -> Slot:
    """Find where `target` lives. Raises ApplyError where its class is not there."""
    owner: Any = module
    for part in filter(None, target.owner.split(".")):
        inner = namespace(owner).get(part, MISSING)
        if not isinstance(inner, type):
            raise ApplyError(
                subject=str(target),
                expected=f"a class {part} in {getattr(owner, '__name__', owner)}",
                found=f"{inner!r}"[:200],
                fix="look for what replaced that class: the source defines it",
            )
        owner = inner
    return Slot(owner, target.name)


def check_live(patch: Patch, slot: Slot, tree: SourceTree, module: types.ModuleType) -> None:
    """Raise ApplyError where the live object is not the one that the source defines.

    The source may be in order and the object in memory somebody else's: another patcher came first.
    """
    value = slot.read()
    if patch.action is Action.ADD:
        if value is not MISSING:
            raise _unexpected(patch, "nothing there", f"{value!r}")
        return
    if value is MISSING:
        raise _unexpected(patch, f"{slot.key} in the own namespace of {slot.owner!r}", "nothing there")
    function = inspect.unwrap(value.__func__ if isinstance(value, staticmethod | classmethod) else value)
    code = getattr(function, "__code__", None)
    # Without code it is a class, a property, or decorated into something else: the source's fingerprint has to do.
    if code is None or (code.co_filename == module.__file__ and code.co_name == slot.key):
        return
    definition = tree.definition(patch.target)
    if definition is None or definition.kind not in (Kind.IMPORTED, Kind.ASSIGNED):
        raise _unexpected(patch, f"the function defined in {module.__file__}", f"one from {code.co_filename}")


def comes_from(value: Any, module: types.ModuleType) -> bool:
    """Whether a function, method or class was defined in `module`."""
    inner = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    return getattr(inner, "__module__", None) == module.__name__


def _unexpected(patch: Patch, expected: str, found: str) -> ApplyError:
    return ApplyError(
        subject=f"patch {patch.id} of {patch.target}",
        expected=expected,
        found=found[:300],
        fix="another package patches the same target: load only one of the two",
    )


def build(patch: Patch, original: Any) -> Any:
    """Make what takes the target's place: `original` is what its namespace holds, a descriptor as it is."""
    check_names(patch)
    implementation = patch.implementation
    if patch.action is Action.SET:
        return implementation(original)
    if patch.action is Action.ADD or not isinstance(implementation, types.FunctionType):
        return implementation
    if isinstance(original, staticmethod | classmethod):
        return type(original)(_function(patch, original.__func__))
    if isinstance(original, property):
        if original.fget is None:
            raise _unexpected(patch, "a property with a getter", "one without")
        return property(_function(patch, original.fget), original.fset, original.fdel, original.__doc__)
    return _function(patch, original)


def _function(patch: Patch, original: Callable[..., Any]) -> Callable[..., Any]:
    implementation = patch.implementation
    if patch.action is Action.WRAP:
        return _wrapped(implementation, original)
    # A copy, so that one implementation may serve several targets: each is found again under its own name, which is
    # what pickle by reference and Ray need, and keeps marks that upstream's decorators left on the function.
    copy = types.FunctionType(
        implementation.__code__,
        implementation.__globals__,
        implementation.__name__,
        implementation.__defaults__,
        implementation.__closure__,
    )
    copy.__kwdefaults__ = implementation.__kwdefaults__
    functools.update_wrapper(copy, original)
    del copy.__wrapped__  # type: ignore[attr-defined]
    return copy


def _wrapped(implementation: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return await implementation(original, *args, **kwargs)
    else:

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return implementation(original, *args, **kwargs)

    return wrapper


def check_names(patch: Patch) -> None:
    """Raise ApplyError where the implementation refers to global names that do not resolve."""
    for function in _functions_of(patch.implementation):
        missing = sorted(
            name
            for name in _global_names(function.__code__)
            if name not in function.__globals__ and not hasattr(builtins, name)
        )
        if missing:
            raise ApplyError(
                subject=f"patch {patch.id} of {patch.target}",
                expected="an implementation whose global names all resolve",
                found=f"unresolved in {function.__qualname__}: {', '.join(missing)}",
                fix="import or define them in the module of the implementation",
            )


def _functions_of(implementation: Any) -> Iterator[types.FunctionType]:
    if isinstance(implementation, types.FunctionType):
        yield implementation
    elif isinstance(implementation, type):
        members: Mapping[str, Any] = vars(implementation)
        for member in members.values():
            inner = member.__func__ if isinstance(member, staticmethod | classmethod) else member
            if isinstance(inner, types.FunctionType):
                yield inner


def _global_names(code: types.CodeType) -> set[str]:
    names = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names
