"""The states of features and patches as the commands show them: in colours, and by process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...manifest import Manifest
from ...registry.state import State

BAD = frozenset({State.DRIFTED, State.FAILED, State.SHADOWED, State.MISSED, State.INEFFECTIVE})
"""States that a user has to do something about."""
QUIET = frozenset(
    {State.VERIFIED, State.APPLIED, State.PENDING, State.NATIVE, State.CLAIMED, State.SEEN, State.ABSENT}
)
"""States that are as they should be."""

_COLOURS: Mapping[str, str] = {
    State.DRIFTED: "red",
    State.FAILED: "red",
    State.SHADOWED: "red",
    State.MISSED: "red",
    State.INEFFECTIVE: "red",
    State.ABSENT: "dim",
    State.PENDING: "yellow",
    State.DISABLED: "yellow",
    State.VERIFIED: "green",
    State.APPLIED: "green",
    State.NATIVE: "green",
    State.CLAIMED: "green",
    State.SEEN: "green",
}


def colour(state: str) -> str:
    """Return the style of a state in a terminal; none for a word that is no state."""
    return _COLOURS.get(state, "")


@dataclass(frozen=True, slots=True)
class Share:
    """The processes in which one feature is in one state."""

    feature: str
    state: str
    processes: str
    """For people: `all 6`, or the roles, with their number if there are several of one."""


def process(manifest: Manifest) -> str:
    """Return the name of a process for people."""
    return f"{manifest['role']} {manifest['host']}:{manifest['pid']}"


def shares(manifests: Sequence[Manifest]) -> list[Share]:
    """Return for each feature its states, and the processes that are in each."""
    found = []
    for name in dict.fromkeys(name for manifest in manifests for name in manifest["features"]):
        by_state: dict[str, list[Manifest]] = {}
        for manifest in manifests:
            entry = manifest["features"].get(name)
            by_state.setdefault(entry["state"] if entry else "unknown", []).append(manifest)
        states = {state: _together(members, manifests) for state, members in by_state.items()}
        found += [Share(name, state, processes) for state, processes in states.items()]
    return found


def _together(members: Sequence[Manifest], everybody: Sequence[Manifest]) -> str:
    if len(members) == len(everybody):
        return "the only process" if len(members) == 1 else f"all {len(members)} processes"
    present = Counter(member["role"] for member in members)
    total = Counter(manifest["role"] for manifest in everybody)
    names = []
    for role, count in present.items():
        if count < total[role]:
            # Some processes of this role are in another state: their numbers tell them apart.
            names += [f"{role} {m['host']}:{m['pid']}" for m in members if m["role"] == role]
        else:
            names.append(role if count == 1 else f"{count} {role}")
    return ", ".join(names)
