"""Values that the shell or Hydra has yet to compute, such as `${TP}`: what depends on one cannot be judged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["Known", "Unexpanded", "UnknownValueError", "unexpanded"]

# Hydra's own references have a dot or a resolver: ${actor_rollout_ref.actor.x}, ${oc.env:HOME}.
_REFERENCE = re.compile(r"\$\{\w+\.")
_COMMAND = re.compile(r"\$\(|`")
_VARIABLE = re.compile(r"\$[{\w@*#?!]")


@dataclass(frozen=True, slots=True)
class Unexpanded:
    """A value as its author wrote it."""

    text: str
    kind: str
    """What computes it, as the predicate of a sentence: is a shell variable."""

    def __str__(self) -> str:
        return self.text


def unexpanded(text: str) -> Unexpanded | None:
    """Return `text` as a value that is yet to be computed, or None if it stands for itself."""
    if _REFERENCE.search(text):
        return Unexpanded(text, "is a reference to another setting")
    if _COMMAND.search(text):
        return Unexpanded(text, "is computed by the shell")
    if _VARIABLE.search(text):
        return Unexpanded(text, "is a shell variable")
    return None


class UnknownValueError(Exception):
    """A rule needs a value that is yet to be computed. It never reaches the user: the rule is skipped."""


class Known(Mapping[str, object]):
    """A mapping that raises UnknownValueError if a value that is yet to be computed is looked up."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> object:
        value = self._values[key]
        if isinstance(value, Unexpanded):
            raise UnknownValueError(key)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
