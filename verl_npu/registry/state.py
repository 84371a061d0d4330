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
    """What one patch, or one feature, is doing in this process."""

    REGISTERED = "registered"
    """Declared; nothing has been looked at yet."""
    PENDING = "pending"
    """Verified against the source; its module is not imported in this process yet."""
    MISSED = "missed"
    """Verified, and its module is loaded in this process, but in a way that passed our hooks: upstream's code runs."""
    VERIFIED = "verified"
    """The target is what the patch was written for; nothing is changed yet."""
    APPLIED = "applied"
    """In force: the target was read back and is ours."""
    NATIVE = "native"
    """Upstream does it itself at this revision: its source says so."""
    CLAIMED = "native (claimed)"
    """Upstream means to patch it by itself, and has not got there yet in this process."""
    SEEN = "native (seen)"
    """Upstream has patched it by itself: the target was read back and is upstream's."""
    INEFFECTIVE = "native (ineffective)"
    """Upstream means to patch it by itself, and its patch does not reach it: a name that it uses is stale."""
    ABSENT = "absent"
    """The target does not exist here, and need not."""
    DRIFTED = "drifted"
    """The target is not what the patch was written for; nothing is changed."""
    SHADOWED = "shadowed"
    """Applied, and overwritten by somebody else since."""
    FAILED = "failed"
    """Applying it raised; everything was put back."""
    DISABLED = "disabled"
    """Switched off by the user."""
    ROLLED_BACK = "rolled back"
    """Was applied, and was taken back."""


LIVE = (State.PENDING, State.APPLIED)
"""The states of a patch that is wanted in this process."""

UPSTREAMS_OWN = (State.NATIVE, State.CLAIMED, State.SEEN, State.INEFFECTIVE)
"""The states of a patch that is left to upstream, which does it itself or means to."""


class Standing(Word):
    """What a patch stands for at one pin, as its lock records it."""

    NEEDED = "needed"
    NATIVE = "native"
    ABSENT = "absent"


# The first of these that any patch is in decides for its feature: bad news outranks good news.
_DECIDING = (
    State.FAILED,
    State.SHADOWED,
    State.MISSED,
    State.DRIFTED,
    State.INEFFECTIVE,
    State.DISABLED,
    State.ROLLED_BACK,
    State.REGISTERED,
    State.APPLIED,
    State.PENDING,
    State.VERIFIED,
    State.CLAIMED,
    State.SEEN,
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
