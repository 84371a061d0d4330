"""The closed sets of the registry: what a patch is doing in this process, and what it stands for at a pin."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class State(str, Enum):
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

    def __str__(self) -> str:
        return self.value


UPSTREAMS_OWN = (State.NATIVE, State.CLAIMED, State.SEEN, State.INEFFECTIVE)
"""The states of a patch that is left to upstream, which does it itself or means to."""


class Standing(str, Enum):
    """What a patch stands for at one pin, as its lock records it."""

    NEEDED = "needed"
    NATIVE = "native"
    ABSENT = "absent"

    def __str__(self) -> str:
        return self.value


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
