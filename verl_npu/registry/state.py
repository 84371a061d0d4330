"""States of patches and features, and the types of a manifest's entries."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TypedDict


class Word(str, Enum):
    """One word of a closed set; its text is its value."""

    def __str__(self) -> str:
        return str(self.value)


class State(Word):
    """The state of one patch or feature in this process; a reason beside it gives details."""

    PENDING = "pending"
    """It fits, and will be applied when its module is imported."""
    APPLIED = "applied"
    """It is in force: the target was read back, and our code is called."""
    NATIVE = "native"
    """Upstream has the fix: in its source, or in a patch of its own that is expected or was read back."""
    ABSENT = "absent"
    """The target does not exist here, and does not have to."""
    DRIFTED = "drifted"
    """The target is not the one that the patch was written for; nothing is changed."""
    OVERWRITTEN = "overwritten"
    """Our patch or upstream's own was applied, and has since been replaced by other code."""
    FAILED = "failed"
    """It is needed but not in force: applying it raised an error, its module was imported past our hook, or upstream's
    own patch got lost."""
    OFF = "off"
    """It is not applied: switched off, undone, or left out because another patch of its feature is at fault."""


LIVE = (State.PENDING, State.APPLIED)
"""The states of a patch that is in force, or will be."""


class Standing(Word):
    """The status of a patch at one pin, as recorded in its lock."""

    NEEDED = "needed"
    NATIVE = "native"
    ABSENT = "absent"


# The first of these states that any patch has decides for its feature, so bad news outranks good news.
_DECIDING = (
    State.FAILED,
    State.OVERWRITTEN,
    State.DRIFTED,
    State.OFF,
    State.APPLIED,
    State.PENDING,
    State.NATIVE,
)


def feature_state(states: Iterable[State]) -> State:
    """Return the state of a feature from the states of its patches.

    A feature counts as applied once one patch is applied and all others are applied, native, absent, or pending: as
    long as a patch is pending, its module is not loaded and cannot run unpatched.
    """
    present = set(states)
    return next((state for state in _DECIDING if state in present), State.ABSENT)


class UpstreamEntry(TypedDict):
    """The revision of one upstream, as found by a process."""

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

    owner: str
    """The distribution of the feature, unless it is the registry's own."""
    state: str
    patches: dict[str, PatchEntry]


class NativeEntry(TypedDict):
    """One target that upstream patches by itself, in one process."""

    by: str
    """The module of upstream that patches it."""
    state: str
    reason: str


class RegistryActivity(TypedDict):
    """The upstreams that were found, and the state of every patch."""

    upstreams: dict[str, UpstreamEntry]
    features: dict[str, FeatureEntry]
    natives: dict[str, NativeEntry]
    """The targets that upstream patches by itself and that this process has reached."""
    tainted: list[str]
    """The features that were applied because the user forced them."""
    seconds: float
    """The time spent on verifying and applying the patches."""
