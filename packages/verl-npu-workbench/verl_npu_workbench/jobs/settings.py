"""A trainer's settings by full key, and overrides in Hydra's syntax."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that Hydra composed, including later changes."""

    values: Mapping[str, object]

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def get(self, key: str) -> object:
        """Return a value, or None if there is no such key."""
        return self.values.get(key)

    def text(self, key: str) -> str:
        """Return a value as text, or an empty string if the value is null or missing."""
        value = self.get(key)
        return "" if value is None or value == {} else str(value)

    def number(self, key: str, default: float = 0) -> float:
        """Return a value as a number, or the default if it is not a number."""
        value = self.get(key)
        if isinstance(value, bool):
            return default
        if isinstance(value, str):
            try:
                return float(value)
            except ValueError:
                return default
        return value if isinstance(value, int | float) else default

    def whole(self, key: str, default: int = 0) -> int:
        """Return a value as a whole number, or the default if it is not a finite number."""
        value = self.number(key, default)
        return int(value) if math.isfinite(value) else default

    def truth(self, key: str) -> bool:
        """Return whether a value is one of the spellings of true in YAML or Python."""
        value = self.get(key)
        return value is True or str(value).lower() == "true"

    def ending(self, *endings: str) -> Iterator[str]:
        """Yield the keys whose last part is one of `endings`."""
        for key in self.values:
            if key.rpartition(".")[2] in endings:
                yield key

    def matching(self, pattern: str) -> Iterator[str]:
        """Yield the keys that fully match a pattern."""
        compiled = re.compile(pattern)
        for key in self.values:
            if compiled.fullmatch(key):
                yield key

    def directly_in(self, section: str) -> Iterator[str]:
        """Yield the keys of a section, without the keys of its subsections."""
        for key in self.values:
            if key.rpartition(".")[0] == section:
                yield key

    def below(self, section: str) -> dict[str, Any]:
        """Return a section as nested mappings, without null values."""
        start = f"{section}."
        return nested(
            (key.removeprefix(start), value)
            for key, value in self.values.items()
            if key.startswith(start) and value is not None
        )

    def changed(self, after: Mapping[str, object]) -> Settings:
        """Return a copy of the settings in which the keys in `after` have new values. If `after` replaces a section
        with a value, the section's keys are removed."""
        kept = {
            key: value
            for key, value in self.values.items()
            if not any(key.startswith(f"{changed}.") for changed in after)
        }
        return Settings({**kept, **after})


def nested(values: Iterable[tuple[str, object]]) -> dict[str, Any]:
    """Convert pairs of full keys and values to nested mappings. If a value and a section have the same key, the later
    one is kept."""
    found: dict[str, Any] = {}
    for key, value in values:
        *sections, last = key.split(".")
        inner = found
        for name in sections:
            # A recipe's configuration may use one key both as a value and as a section.
            if not isinstance(inner.get(name), dict):
                inner[name] = {}
            inner = inner[name]
        inner[last] = copy.deepcopy(value)
    return found


def override(key: str, value: object) -> str:
    """Return a Hydra override that sets a key. It adds the key if the key does not exist."""
    return f"++{key}={written(value)}"


def written(value: object) -> str:
    """Return a value in the syntax of Hydra's command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(written, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{written(each)}" for key, each in value.items()) + "}"
    if isinstance(value, str):
        # Hydra keeps a backslash as it is, except in front of a quote and at the end.
        return "'" + re.sub(r"(?<!\\)(\\*)('|\Z)", _escaped, value) + "'"
    return str(value)


def _escaped(found: re.Match[str]) -> str:
    backslashes, quote = found.groups()
    return 2 * backslashes + (f"\\{quote}" if quote else "")
