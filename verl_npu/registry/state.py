"""The states of patches and features, and the types of the entries in a manifest."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TypedDict


class Word(str, Enum):
    """An enum member that is also a string: its `str()` is its value."""

    def __str__(self) -> str:
        return str(self.value)


class State(Word):
    """The state of one patch or one feature in a process. Details are in the separate `reason` field."""

    PENDING = "pending"
    """The patch fits. It will be applied when its module is imported."""
    APPLIED = "applied"
    """The patch is in force: the target was read back, and the patch's code is called."""
    NATIVE = "native"
    """Upstream has the fix. It is in upstream's source, or in a patch of upstream's own that is expected or was found
    in force."""
    ABSENT = "absent"
    """The target does not exist here, and need not exist."""
    DRIFTED = "drifted"
    """The target differs from the target that the patch was written for. Nothing is changed."""
    OVERWRITTEN = "overwritten"
    """This patch or upstream's own patch was applied, but other code has replaced it since."""
    FAILED = "failed"
    """The patch is needed but not in force. Applying it raised an error, its module was imported without calling
    verl-npu's hook, or upstream's own patch was lost."""
    OFF = "off"
    """The patch is not applied. It was disabled or undone, or another patch of its feature is at fault."""


LIVE = (State.PENDING, State.APPLIED)
"""The states of a patch that is in force, or will be when its module is imported."""


class Standing(Word):
    """The status of a patch at one pin, as recorded in the pin's lock."""

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
    """Return the state of a feature, given the states of its patches.

    A feature is applied if at least one patch is applied, and all others are applied, native, absent, or pending.
    Pending patches do no harm: their modules are not loaded, and so cannot run without the patch.
    """
    present = set(states)
    return next((state for state in _DECIDING if state in present), State.ABSENT)


class UpstreamEntry(TypedDict):
    """The revision of one upstream, as detected in a process."""

    nearest_pin: str
    exact: bool
    differs: list[str]


class PatchEntry(TypedDict):
    """The state of one patch in one process."""

    target: str
    state: str
    reason: str


class FeatureEntry(TypedDict):
    """The state of one feature in one process."""

    owner: str
    """The distribution that the feature comes from. Empty if it is the registry's own."""
    state: str
    patches: dict[str, PatchEntry]


class NativeEntry(TypedDict):
    """The state, in one process, of a target that upstream itself patches."""

    by: str
    """The upstream module that patches the target."""
    state: str
    reason: str


class RegistryActivity(TypedDict):
    """The revision of each upstream, and the states of all features and patches."""

    upstreams: dict[str, UpstreamEntry]
    features: dict[str, FeatureEntry]
    natives: dict[str, NativeEntry]
    """The targets that upstream patches itself, as far as this process has executed the code that patches them."""
    tainted: list[str]
    """The features that have drifted and were applied anyway, because the user forced them."""
    seconds: float
    """The time in seconds that judging and applying the patches took."""
