"""Functions and their code objects: cloning one, and the global names that it refers to."""

from __future__ import annotations

import builtins
import dis
import types
from collections.abc import Callable, Iterator

__all__ = ["clone", "functions_of", "global_names", "unresolved_names"]


def clone(
    function: types.FunctionType,
    *,
    name: str = "",
    code: types.CodeType | None = None,
    namespace: dict[str, object] | None = None,
) -> types.FunctionType:
    """Return another function that does what `function` does, or what `code` says.

    It has the given name and looks up globals in the given namespace, or has those of `function`.
    """
    made = types.FunctionType(
        code or function.__code__,
        function.__globals__ if namespace is None else namespace,
        name or function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def functions_of(implementation: Callable[..., object]) -> Iterator[types.FunctionType]:
    """Return the function itself, or of a class the functions in its own body."""
    if isinstance(implementation, types.FunctionType):
        yield implementation
    elif isinstance(implementation, type):
        for member in vars(implementation).values():
            inner = member.__func__ if isinstance(member, staticmethod | classmethod) else member
            if isinstance(inner, types.FunctionType):
                yield inner


def global_names(code: types.CodeType) -> set[str]:
    """Return the names that a code object, and those inside it, look up among globals and builtins."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= global_names(constant)
    return names


def unresolved_names(function: types.FunctionType) -> list[str]:
    """Return the global names of `function` that are neither in its module nor builtin, in order."""
    names = global_names(function.__code__)
    return sorted(n for n in names if n not in function.__globals__ and not hasattr(builtins, n))
