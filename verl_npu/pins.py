"""The pins. A pin is a revision of verl with a lock, and with the engine versions that verl's documentation for NPUs
names.

Each pin has a folder below `patches/verl`, which contains a `pin.json` of three lines and the lock.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from .errors import DeclarationError

FILE_NAME = "pin.json"


@dataclass(frozen=True, slots=True)
class Pin:
    """One pin: a revision of verl."""

    name: str
    version: str
    """The content of `verl/version/version` in the release. If there is no release, its content at the commit."""
    engines: Mapping[str, str]
    """The versions of `vllm` and `vllm-ascend`. If the documentation names a branch, the version is like `0.23.*`."""
    mindspeed: str
    """The recorded revision of MindSpeed that goes with this pin."""
    commit: str = ""
    """The commit. Empty if only the release on the package index is known."""


def locks_folder() -> Path:
    """Return the folder of pins and locks. An installed package contains it. In a checkout, it is beside the
    package."""
    package = Path(__file__).resolve().parent
    shipped = package / "patches"
    return shipped if shipped.is_dir() else package.parent / "patches"


@functools.cache
def pins(folder: Path | None = None) -> Mapping[str, Pin]:
    """Return the pins in a folder (default: `locks_folder()`) as a mapping from names to pins, ordered from the oldest
    pin to the newest.

    Raises DeclarationError if a file is damaged.
    """
    paths = (folder or locks_folder()).glob(f"verl/*/{FILE_NAME}")
    # The scripts run without `packaging`. At equal versions, a commit sorts before the release, whose name starts with
    # v.
    found = sorted(map(_read, paths), key=lambda pin: ([*map(int, re.findall(r"\d+", pin.version))], pin.name))
    return MappingProxyType({pin.name: pin for pin in found})


def _read(path: Path) -> Pin:
    try:
        pin = Pin(path.parent.name, **json.loads(path.read_text(encoding="utf-8")))
        if not isinstance(pin.version, str):
            raise TypeError(f"version is {pin.version!r}, not a string")
        return pin
    except (OSError, ValueError, TypeError) as error:
        raise DeclarationError(
            subject=str(path),
            found=f"this pin cannot be read: {type(error).__name__}: {error}",
            fix="correct the file (see 'Add a pin' in CONTRIBUTING.md), or install verl-npu again",
        ) from error
