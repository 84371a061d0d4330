"""What the declaration of a patch names in an upstream beside its target: constants, settings, modules that patch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Value:
    """A constant that reaches an argument."""

    constant: object


@dataclass(frozen=True, slots=True)
class Key:
    """What is looked up under a name, in a mapping or as an attribute: most often a setting of the user's."""

    name: str


Origin = Value | Key
Origins = frozenset[Origin | None]
"""Where a value may come from; None is among them if that cannot all be told."""


@dataclass(frozen=True, slots=True)
class PatchModule:
    """A module of an upstream that patches other packages when it is imported, or when its functions are called."""

    name: str
    calls: tuple[str, ...] = ()
    """Its functions that upstream calls to have its patches applied."""
    given: tuple[str, ...] = ()
    """Names of functions and constants that are true in every process that is patched, such as `is_npu_available`."""
