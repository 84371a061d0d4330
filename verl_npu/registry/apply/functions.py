"""Copies of functions."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FunctionType

from ...errors import DeclarationError

__all__ = ["clone"]


def clone(function: Callable[..., object], *, name: str = "", code: CodeType | None = None) -> FunctionType:
    """Return a copy of a plain function, with another name or other code if they are given.

    Raises DeclarationError if `function` is not a plain function.
    """
    if not isinstance(function, FunctionType):
        raise DeclarationError(
            subject=f"copy of {function!r}",
            expected="a plain function",
            found=type(function).__name__,
            fix="give the function itself, without decorators",
        )
    copy = FunctionType(
        code or function.__code__,
        function.__globals__,
        name or function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__doc__ = function.__doc__
    return copy
