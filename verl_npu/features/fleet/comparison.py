"""Comparison of the manifests of a job's processes. Each difference is reported in one line."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from ... import environment, reporting
from ...errors import FleetError
from ...manifest import Manifest, titled
from ...registry.state import State
from .manifests import Reading, published

_MAX_CHARACTERS, _MAX_LINES = 2000, 30
"""The limits of the report: the number of characters in a line, and the number of lines."""


def compare() -> None:
    """Report whether the processes of this job agree. Raises FleetError if they disagree and VERL_NPU_STRICT=1."""
    reading = published()
    count = len(reading.manifests)
    # Text from other processes is not trusted.
    lines = [reporting.clean(reporting.shortened(line, _MAX_CHARACTERS)) for line in _differences(reading)]
    if not lines:
        reporting.report(f"{count} processes agree on what is patched" if count > 1 else "the job has one process")
    elif environment.STRICT.read():
        raise FleetError(
            subject="the processes of this job",
            expected=f"the same patches in all {count + len(reading.missing)} processes",
            found=" | ".join(lines),
            fix="install the same versions of verl-npu and of its upstreams on every host, and set the same "
            "variables there",
            override=f"{environment.STRICT.name}=0",
        )
    else:
        reporting.warn(f"the processes of this job differ in what is patched: {' | '.join(lines)}")


def _differences(reading: Reading) -> list[str]:
    """Return a line for each missing manifest and for each difference. If there are too many, the last line counts the
    rest."""
    lines = [*_unknown(reading), *differences(reading.manifests)]
    return lines if len(lines) <= _MAX_LINES else [*lines[:_MAX_LINES], f"{len(lines) - _MAX_LINES} more"]


def _unknown(reading: Reading) -> list[str]:
    """Return a line for each reason why manifests are missing."""
    lines = []
    if reading.unreadable:
        lines.append(f"the manifests of the other processes cannot be read ({reading.unreadable})")
    lines += reading.wrong
    if reading.missing:
        lines.append(f"no manifest, so verl-npu is probably not active: {', '.join(reading.missing)}")
    return lines


def differences(manifests: Sequence[Manifest]) -> list[str]:
    """Return one line for each difference between the processes of a job; none if they agree."""
    lines = [
        *_difference("version of the plugin", manifests, lambda manifest: manifest["version"]),
        *_difference("virtual or real devices", manifests, _devices),
    ]
    # A process that has not imported verl yet has not verified any feature.
    verified = [manifest for manifest in manifests if manifest["features"]]
    for upstream in _names(manifest["upstreams"] for manifest in verified):
        lines += _difference(f"revision of {upstream}", verified, partial(_revision, upstream))
    for feature in _names(manifest["features"] for manifest in verified):
        lines += _difference(f"feature {titled(feature, verified)}", verified, partial(_state, feature))
    return lines


def _difference(label: str, manifests: Sequence[Manifest], value_of: Callable[[Manifest], str]) -> list[str]:
    """Return one line if `value_of` gives more than one value for the processes. The line lists the processes for each
    value."""
    processes = defaultdict(list)
    for manifest, name in zip(manifests, _labels(manifests), strict=True):
        processes[value_of(manifest)].append(name)
    if len(processes) < 2:
        return []
    return [f"{label}: " + "; ".join(f"{value} in {', '.join(names)}" for value, names in processes.items())]


def _labels(manifests: Sequence[Manifest]) -> list[str]:
    """Return a name for each process, made of its role, host, and process id. If two containers share these, add the
    tokens."""
    places = Counter((manifest["host"], manifest["pid"]) for manifest in manifests)
    labels = []
    for manifest in manifests:
        label = f"{manifest['role']} {manifest['host']}:{manifest['pid']}"
        shared = places[manifest["host"], manifest["pid"]] > 1
        labels.append(f"{label} (container {manifest['token']})" if shared else label)
    return labels


def _names(parts: Iterable[Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(name for part in parts for name in part))


def _devices(manifest: Manifest) -> str:
    return "virtual" if manifest["simulated"] else "real"


def _revision(upstream: str, manifest: Manifest) -> str:
    entry = manifest["upstreams"].get(upstream)
    if entry is None or not entry["nearest_pin"]:
        return "unknown"
    return entry["nearest_pin"] if entry["exact"] else f"{entry['nearest_pin']} (nearest)"


def _state(feature: str, manifest: Manifest) -> str:
    entry = manifest["features"].get(feature)
    state = "unknown" if entry is None else entry["state"]
    # A process that has not imported a target runs no unpatched code, so it agrees with one that applied the patch.
    equivalent = (State.APPLIED, State.PENDING)
    return " or ".join(map(str, equivalent)) if state in equivalent else state
