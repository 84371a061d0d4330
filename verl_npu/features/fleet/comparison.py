"""The processes of a job are compared by their manifests before it trains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from ... import environment, reporting
from ...errors import FleetError
from ...manifest import Manifest
from ...registry.source.probe import Defines, Never
from ...registry.state import State
from .feature import fleet
from .publication import published

__all__ = [
    "compare",
    "compare_processes_before_training",
    "compare_processes_before_v1_training",
    "differences",
]

_WHY = "If processes of a job are patched differently, it trains without an error, and the numbers are wrong."
_HOW = (
    "The manifests of all processes are compared before the first step. A difference is a warning, or with "
    "VERL_NPU_STRICT=1 an error."
)
_LINK = "none: it is about verl-npu's own patches"
_NEVER = Never("it is about verl-npu's own patches")

Result = TypeVar("Result")


@fleet.wrap("verl.trainer.ppo.ray_trainer:RayPPOTrainer.fit", why=_WHY, how=_HOW, link=_LINK, retired_by=_NEVER)
def compare_processes_before_training(
    original: Callable[..., Result], trainer: object, *args: object, **kwargs: object
) -> Result:
    """Compare the processes, then train. Raises FleetError if they differ and VERL_NPU_STRICT is 1."""
    compare()
    return original(trainer, *args, **kwargs)


@fleet.wrap(
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer.fit",
    why=_WHY,
    how=_HOW,
    link=_LINK,
    retired_by=_NEVER,
    requires=Defines("verl.trainer.ppo.v1.trainer_base:PPOTrainer.fit"),
)
def compare_processes_before_v1_training(
    original: Callable[..., Result], trainer: object, *args: object, **kwargs: object
) -> Result:
    """Compare the processes, then train. Raises FleetError if they differ and VERL_NPU_STRICT is 1."""
    compare()
    return original(trainer, *args, **kwargs)


def compare() -> None:
    """Say whether the processes of this job agree. Raises FleetError if they do not and VERL_NPU_STRICT is 1."""
    manifests = published()
    lines = differences(manifests)
    if not lines:
        reporting.report(f"{len(manifests)} processes agree on what is patched")
    elif environment.STRICT.read():
        raise FleetError(
            subject="the processes of this job",
            expected=f"the same patches in all {len(manifests)} processes",
            found=" | ".join(lines),
            fix="install the same verl-npu and upstreams on every host and set the same variables",
            override=f"{environment.STRICT.name}=0",
        )
    else:
        reporting.warn(f"{len(manifests)} processes differ in what is patched: {' | '.join(lines)}")


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
        lines += _difference(f"feature {feature}", verified, partial(_state, feature))
    return lines


def _difference(label: str, manifests: Sequence[Manifest], value_of: Callable[[Manifest], str]) -> list[str]:
    """Return one line if the processes have more than one value; it names the processes with each value."""
    processes = defaultdict(list)
    for manifest in manifests:
        processes[value_of(manifest)].append(f"{manifest['role']} {manifest['host']}:{manifest['pid']}")
    if len(processes) < 2:
        return []
    return [f"{label}: " + "; ".join(f"{value} in {', '.join(names)}" for value, names in processes.items())]


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
    # A process that has not imported a target has no unpatched code to run, so it agrees with one that applied it. The
    # same holds where upstream patches by itself.
    for alike in (State.APPLIED, State.PENDING), (State.SEEN, State.CLAIMED):
        if state in alike:
            return " or ".join(map(str, alike))
    return state
