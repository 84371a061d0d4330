"""What takes the place of a target: made from the patch's implementation and from what is there."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import cast

from ...errors import ApplyError
from ..patch import Action, Patch
from .code import clone, functions_of, unresolved_names
from .slot import Slot

__all__ = ["build", "check_names"]

Function = Callable[..., object]


def build(patch: Patch, original: object, slot: Slot) -> object:
    """Make what takes the target's place: `original` is what its namespace holds, a descriptor as it is.

    Raises ApplyError for a kind of object that cannot be wrapped or replaced.
    """
    check_names(patch)
    implementation = patch.implementation
    if patch.action is Action.SET:
        if slot.key in getattr(slot.owner, "__dataclass_fields__", ()):
            # The default is in __init__ as well, which would go on giving the old one.
            raise _unfit(patch, "a value that is read where it stands", "the default of a dataclass's field")
        return implementation(original)
    if patch.action is Action.ADD or not isinstance(implementation, types.FunctionType):
        return implementation
    if isinstance(original, staticmethod | classmethod):
        return type(original)(_called(patch, implementation, original.__func__))
    if isinstance(original, property):
        if original.fget is None:
            raise _unfit(patch, "a property with a getter", "one without")
        getter = _called(patch, implementation, original.fget)
        return property(getter, original.fset, original.fdel, original.__doc__)
    if isinstance(original, functools.cached_property):
        made = functools.cached_property(_called(patch, implementation, original.func))
        # The class statement would have told it its name, under which it keeps its value.
        made.__set_name__(cast(type, slot.owner), slot.key)
        return made
    return _called(patch, implementation, original)


def check_names(patch: Patch) -> None:
    """Raise ApplyError if the implementation refers to global names that do not resolve."""
    for function in functions_of(patch.implementation):
        missing = unresolved_names(function)
        if missing:
            raise ApplyError(
                subject=f"patch {patch.id} of {patch.target}",
                expected="an implementation whose global names all resolve",
                found=f"unresolved in {function.__qualname__}: {', '.join(missing)}",
                fix="import or define them in the module of the implementation",
            )


def _called(patch: Patch, implementation: types.FunctionType, original: object) -> Function:
    if not callable(original) and not hasattr(original, "__get__"):
        raise _unfit(patch, "something that can be called", f"{original!r}")
    if patch.action is Action.REPLACE:
        return _replaced(implementation, original)
    if isinstance(original, types.FunctionType) and not _is_generator(original):
        return _wrapped(implementation, original)
    return _proxied(patch, implementation, original)


def _replaced(implementation: types.FunctionType, original: object) -> Function:
    # A copy, so that one implementation may serve several targets: each is found again under its own name, which is
    # what pickle by reference and Ray need, and keeps marks that upstream's decorators left on the function.
    made = clone(implementation)
    functools.update_wrapper(made, cast(Function, original))
    del made.__wrapped__  # type: ignore[attr-defined]  # update_wrapper has just set it
    return made


def _wrapped(implementation: types.FunctionType, original: Function) -> Function:
    # A plain function stays one: Ray pickles it by name, which a proxy object would not survive.
    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def wrapper(*args: object, **kwargs: object) -> object:
            return await implementation(original, *args, **kwargs)
    else:

        @functools.wraps(original)
        def wrapper(*args: object, **kwargs: object) -> object:
            return implementation(original, *args, **kwargs)

    return wrapper


def _is_generator(function: types.FunctionType) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _proxied(patch: Patch, implementation: types.FunctionType, original: object) -> Function:
    """Wrap what is no plain function, and keep all else that it can do (`cache_clear`, `register`, its kind)."""
    if isinstance(original, type):
        raise _unfit(patch, "a function or method to wrap", f"the class {original.__qualname__}: replace it instead")
    # Imported here, since most processes wrap plain functions only.
    import wrapt

    def call(wrapped: Function, instance: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        # A method arrives bound; implementations take `self` after the original, as they do for plain functions.
        if instance is None or inspect.isclass(instance):
            return implementation(wrapped, *args, **kwargs)

        def unbound(self: object, *args: object, **kwargs: object) -> object:
            return wrapped(*args, **kwargs)

        return implementation(unbound, instance, *args, **kwargs)

    return cast(Function, wrapt.FunctionWrapper(cast(Function, original), call))


def _unfit(patch: Patch, expected: str, found: str) -> ApplyError:
    return ApplyError(
        subject=f"patch {patch.id} of {patch.target}",
        expected=expected,
        found=found[:300],
        fix="declare the patch for what upstream has there",
    )
