"""Placeholders for names from packages that are not installed, so that a source file can be read without these
packages.

A kernel that needs a placeholder in order to compile is not judged, and the reason names the placeholder.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType


class Stranger:
    """A stranger: a placeholder for a name that cannot be imported or whose definition failed.

    Any operation on the placeholder succeeds and has no effect.
    """

    def __init__(self, name: str) -> None:
        self._stranger = name

    def __getattr__(self, name: str) -> Stranger:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Stranger(f"{self._stranger}.{name}")

    def __call__(self, *given: object, **named: object) -> object:
        # A placeholder used as a decorator returns the decorated function.
        if len(given) == 1 and not named and (isinstance(given[0], FunctionType) or hasattr(given[0], "fn")):
            return given[0]
        return Stranger(f"{self._stranger}()")

    def __getitem__(self, _key: object) -> Stranger:
        return Stranger(f"{self._stranger}[]")

    def __setitem__(self, _key: object, _value: object) -> None:
        pass

    def __mro_entries__(self, _bases: tuple[object, ...]) -> tuple[type, ...]:
        return ()

    def __iter__(self) -> Iterator[object]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return self._stranger

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *_said: object) -> None:
        pass

    def _other(self, _other: object = None) -> Stranger:
        return Stranger(self._stranger)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = _other
    __truediv__ = __rtruediv__ = __mod__ = __rmod__ = __or__ = __ror__ = __and__ = __rand__ = __neg__ = _other

    def _no(self, _other: object) -> bool:
        return False

    __lt__ = __le__ = __gt__ = __ge__ = _no


def strangers_in(value: object) -> list[str]:
    """Return the names of the placeholders in a value, which may itself be a placeholder."""
    if isinstance(value, Stranger):
        return [repr(value)]
    if isinstance(value, (list, tuple)):
        return [name for each in value for name in strangers_in(each)]
    inner = getattr(value, "value", None) if type(value).__name__ == "constexpr" else None
    return strangers_in(inner) if inner is not None else []
