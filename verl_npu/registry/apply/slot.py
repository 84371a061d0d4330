"""A slot: the one key of a module's or class's own namespace that a patch changes."""

from __future__ import annotations

import sys
import types
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Final, cast

from ...errors import ApplyError
from ..source.target import Target

__all__ = ["MISSING", "Owner", "Slot", "find_slot", "namespace", "read_namespace", "slot_of"]

Owner = types.ModuleType | type


class _Missing:
    def __repr__(self) -> str:
        return "<not there>"


MISSING: Final = _Missing()
"""What a slot holds if its key is inherited or not there."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A key in the own namespace of a module or class."""

    owner: Owner
    key: str

    def read(self) -> object:
        """Return what the owner's own namespace holds, unbound; MISSING if the key is inherited or not there."""
        return read_namespace(self.owner).get(self.key, MISSING)

    def write(self, value: object) -> None:
        """Set the key, or delete it if `value` is MISSING."""
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

    def __str__(self) -> str:
        return f"{getattr(self.owner, '__name__', self.owner)}.{self.key}"


def namespace(module: types.ModuleType) -> MutableMapping[str, object]:
    """Return a module's own namespace, without waking a lazy module."""
    return cast(MutableMapping[str, object], object.__getattribute__(module, "__dict__"))


def read_namespace(owner: Owner) -> types.MappingProxyType[str, object] | MutableMapping[str, object]:
    """Return the own namespace of a module or class, without waking a lazy module."""
    if isinstance(owner, types.ModuleType):
        return namespace(owner)
    return cast("types.MappingProxyType[str, object]", type.__getattribute__(owner, "__dict__"))


def find_slot(module: types.ModuleType, target: Target) -> Slot:
    """Find the slot of `target`. Raises ApplyError if its class is not there."""
    owner: Owner = module
    for part in filter(None, target.owner.split(".")):
        inner = read_namespace(owner).get(part, MISSING)
        if not isinstance(inner, type):
            raise ApplyError(
                subject=str(target),
                expected=f"a class {part} in {getattr(owner, '__name__', owner)}",
                found=f"{inner!r}"[:200],
                fix="look for what replaced that class: the source defines it",
            )
        owner = inner
    return Slot(owner, target.name)


def slot_of(place: str) -> Slot | None:
    """Find the slot of a full dotted name in the modules that are loaded; None if its owner is not there."""
    parts = place.split(".")
    for length in range(len(parts) - 1, 0, -1):
        owner: object = sys.modules.get(".".join(parts[:length]))
        if isinstance(owner, types.ModuleType):
            for name in parts[length:-1]:
                owner = read_namespace(owner).get(name) if isinstance(owner, types.ModuleType | type) else None
            return Slot(owner, parts[-1]) if isinstance(owner, types.ModuleType | type) else None
    return None
