"""What the processes of a job say of themselves, compared: each difference is a line."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from ... import environment, reporting
from ...errors import FleetError
from ...manifest import Manifest, titled
from ...registry.state import State
from .manifests import Reading, published

_LONGEST, _MOST = 2000, 30
"""Characters of a line, and lines, that are said of what differs."""


def compare() -> None:
    """Say whether the processes of this job agree. Raises FleetError if they do not and VERL_NPU_STRICT is 1."""
    reading = published()
    count = len(reading.manifests)
    # What others say of themselves is theirs.
    lines = [reporting.clean(reporting.shortened(line, _LONGEST)) for line in _differences(reading)]
    if not lines:
        reporting.report(f"{count} processes agree on what is patched" if count > 1 else "the job has one process")
    elif environment.STRICT.read():
        raise FleetError(
            subject="the processes of this job",
            expected=f"the same patches in all {count + len(reading.missing)} processes",
            found=" | ".join(lines),
            fix="install the same verl-npu and upstreams on every host and set the same variables",
            override=f"{environment.STRICT.name}=0",
        )
    else:
        reporting.warn(f"the processes of this job differ in what is patched: {' | '.join(lines)}")


def _differences(reading: Reading) -> list[str]:
    """Return a line for each thing that is unknown or in which the processes differ, and no more than can be read."""
    lines = [*_unknown(reading), *differences(reading.manifests)]
    return lines if len(lines) <= _MOST else [*lines[:_MOST], f"{len(lines) - _MOST} more"]


def _unknown(reading: Reading) -> list[str]:
    """Return one line for each reason why less is known than the comparison needs."""
    lines = []
    if reading.unreadable:
        lines.append(f"the manifests of the other processes cannot be read ({reading.unreadable})")
    lines += reading.wrong
    if reading.missing:
        lines.append(f"no manifest, so that verl-npu is probably not active: {', '.join(reading.missing)}")
    return lines


def differences(manifests: Sequence[Manifest]) -> list[str]:
    """Return one line for each thing in which the processes of a job differ; none if they agree."""
    lines = [
        *_difference("version of the plugin", manifests, lambda manifest: manifest["version"]),
        *_difference("virtual or real devices", manifests, _devices),
    ]
    # A process that has not imported verl yet has verified no feature.
    verified = [manifest for manifest in manifests if manifest["features"]]
    for upstream in _names(manifest["upstreams"] for manifest in verified):
        lines += _difference(f"revision of {upstream}", verified, partial(_revision, upstream))
    for feature in _names(manifest["features"] for manifest in verified):
        lines += _difference(f"feature {titled(feature, verified)}", verified, partial(_state, feature))
    return lines


def _difference(label: str, manifests: Sequence[Manifest], value_of: Callable[[Manifest], str]) -> list[str]:
    """Return one line if the processes have more than one value; it names the processes with each value."""
    processes = defaultdict(list)
    for manifest, name in zip(manifests, _labels(manifests), strict=True):
        processes[value_of(manifest)].append(name)
    if len(processes) < 2:
        return []
    return [f"{label}: " + "; ".join(f"{value} in {', '.join(names)}" for value, names in processes.items())]


def _labels(manifests: Sequence[Manifest]) -> list[str]:
    """Name each process by its role, host and process number, and containers of one name apart by their tokens."""
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
    # A process that has not imported a target has no unpatched code to run, so it agrees with one that applied it.
    alike = (State.APPLIED, State.PENDING)
    return " or ".join(map(str, alike)) if state in alike else state
