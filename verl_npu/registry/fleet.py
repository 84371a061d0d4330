"""Do the processes of a job agree? Manifests compared, differences named by process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .state import State

__all__ = ["differences"]

# A process that has not imported a target has nothing that could run unpatched: it does not disagree with one that
# has applied the patch.
_IN_FORCE = frozenset({str(State.PENDING), str(State.APPLIED)})


def differences(manifests: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each thing on which the processes of a job differ; empty where they agree."""
    lines = []
    for label, values in (
        ("version of the plugin", {_name(m): str(m["version"]) for m in manifests}),
        ("virtual or real devices", {_name(m): "virtual" if m["simulated"] else "real" for m in manifests}),
    ):
        lines += _split(label, values)
    # A process in which no target's upstream was imported has not looked at anything yet.
    looked = [m for m in manifests if m["features"]]
    for upstream in _names(m["upstreams"] for m in looked):
        lines += _split(f"revision of {upstream}", {_name(m): _revision(m, upstream) for m in looked})
    for feature in _names(m["features"] for m in looked):
        states = {_name(m): m["features"].get(feature, {}).get("state", "unknown") for m in looked}
        lines += _split(
            f"feature {feature}",
            {process: "applied or pending" if state in _IN_FORCE else state for process, state in states.items()},
        )
    return lines


def _name(manifest: Mapping[str, Any]) -> str:
    return f"{manifest['role']} {manifest['host']}:{manifest['pid']}"


def _names(parts: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for part in parts for name in part))


def _revision(manifest: Mapping[str, Any], upstream: str) -> str:
    found = manifest["upstreams"].get(upstream, {})
    return f"{found.get('nearest_pin') or 'unknown'}{'' if found.get('exact') else ' (nearest)'}"


def _split(label: str, values: Mapping[str, str]) -> list[str]:
    by_value = defaultdict(list)
    for process, value in values.items():
        by_value[value].append(process)
    if len(by_value) < 2:
        return []
    return [f"{label}: " + "; ".join(f"{value} in {', '.join(names)}" for value, names in by_value.items())]
