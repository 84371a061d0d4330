"""What becomes of patches: their states and standings, and what a registry did in a process as plain data."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TypedDict


class Word(str, Enum):
    """One of a closed set of words; its text is its value."""

    def __str__(self) -> str:
        return str(self.value)


class State(Word):
    """What one patch, or one feature, is doing in this process. The reason beside it says more."""

    PENDING = "pending"
    """It fits, and is applied when its module is imported."""
    APPLIED = "applied"
    """In force: the target was read back, and ours is called."""
    NATIVE = "native"
    """Upstream does it itself: its source says so, or it means to patch it, or its patch was read back."""
    ABSENT = "absent"
    """The target does not exist here, and need not."""
    DRIFTED = "drifted"
    """The target is not what the patch was written for; nothing is changed."""
    OVERWRITTEN = "overwritten"
    """It was applied, or upstream's own was, and somebody else put something in its place since."""
    FAILED = "failed"
    """It is needed and not in force: applying it raised, its module came past us, or upstream's own patch is lost."""
    OFF = "off"
    """Not applied: switched off, taken back, or left out with a feature of which another patch is at fault."""


ADVICE = {
    State.PENDING: "nothing to do",
    State.APPLIED: "nothing to do",
    State.NATIVE: "nothing to do",
    State.ABSENT: "nothing to do",
    State.DRIFTED: "see what changed with `check --diff`; install an upstream that is a pin, or a newer one of ours",
    State.OVERWRITTEN: "find what was imported later, and load only one of the two",
    State.FAILED: "do what its reason names: another way in that comes earlier, or the version that upstream expects",
    State.OFF: "nothing, if you switched it off; else look at the patch that its reason names",
}
"""What a user does about each state."""

LIVE = (State.PENDING, State.APPLIED)
"""The states of a patch that is wanted in this process."""


class Standing(Word):
    """What a patch stands for at one pin, as its lock records it."""

    NEEDED = "needed"
    NATIVE = "native"
    ABSENT = "absent"


# The first of these that any patch is in decides for its feature: bad news outranks good news.
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
    """The state of a feature whose patches are in `states`.

    A feature is applied as soon as one patch is applied and all others are applied, native, absent, or pending: a
    pending patch has nothing loaded in this process that could run unpatched.
    """
    present = set(states)
    return next((state for state in _DECIDING if state in present), State.ABSENT)


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

    owner: str
    """The distribution that brings it, where that is not the one of the registry."""
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
