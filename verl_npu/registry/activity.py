"""What a registry did in one process, as plain data."""

from __future__ import annotations

from typing import TypedDict

__all__ = ["FeatureEntry", "NativeEntry", "PatchEntry", "RegistryActivity", "UpstreamEntry"]


class UpstreamEntry(TypedDict):
    """The revision of one upstream, as a process found it."""

    nearest_pin: str
    exact: bool
    differs: list[str]


class PatchEntry(TypedDict):
    """One patch in one process."""

    target: str
    state: str
    reason: str


class FeatureEntry(TypedDict):
    """One feature in one process."""

    state: str
    patches: dict[str, PatchEntry]


class NativeEntry(TypedDict):
    """One target that upstream patches by itself, in one process."""

    by: str
    """The module of upstream that does it."""
    state: str
    reason: str


class RegistryActivity(TypedDict):
    """The upstreams that were found, and what became of each patch."""

    upstreams: dict[str, UpstreamEntry]
    features: dict[str, FeatureEntry]
    natives: dict[str, NativeEntry]
    """What upstream patches by itself and this process has reached, by target."""
    tainted: list[str]
    """The features that were applied because the user forces them."""
    seconds: float
    """What verifying and applying the patches cost."""
