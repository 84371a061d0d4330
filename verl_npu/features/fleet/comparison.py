"""The processes of a job are compared before it trains: their manifests, with each difference named by process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ... import environment, reporting
from ...errors import FleetError
from ...manifest import Manifest
from ...registry.source.probe import Defines, Never
from ...registry.state import State
from .feature import fleet
from .publication import published

__all__ = ["compare", "differences"]

# A process that has not imported a target has nothing that could run unpatched: it does not disagree with one that
# has applied the patch.
_IN_FORCE = frozenset({str(State.PENDING), str(State.APPLIED)})


def differences(manifests: Sequence[Manifest]) -> list[str]:
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
        states = {_name(m): m["features"][feature]["state"] if feature in m["features"] else "unknown" for m in looked}
        lines += _split(
            f"feature {feature}",
            {process: "applied or pending" if state in _IN_FORCE else state for process, state in states.items()},
        )
    return lines


def _name(manifest: Manifest) -> str:
    return f"{manifest['role']} {manifest['host']}:{manifest['pid']}"


def _names(parts: Iterable[Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(name for part in parts for name in part))


def _revision(manifest: Manifest, upstream: str) -> str:
    entry = manifest["upstreams"].get(upstream)
    if entry is None or not entry["nearest_pin"]:
        return "unknown"
    return entry["nearest_pin"] if entry["exact"] else f"{entry['nearest_pin']} (nearest)"


def _split(label: str, values: Mapping[str, str]) -> list[str]:
    by_value = defaultdict(list)
    for process, value in values.items():
        by_value[value].append(process)
    if len(by_value) < 2:
        return []
    return [f"{label}: " + "; ".join(f"{value} in {', '.join(names)}" for value, names in by_value.items())]


_DIFFERS = "a fleet in which processes are patched differently trains, and trains wrongly"
_COMPARED = (
    "before the first step the manifests of all processes are compared; strict refuses to start where they differ"
)


@fleet.wrap(
    "verl.trainer.ppo.ray_trainer:RayPPOTrainer.fit",
    why=_DIFFERS,
    how=_COMPARED,
    link="none: it is about our patches",
    retired_by=Never("it is about our patches"),
)
def compared_before_training(original: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """Compare the processes, then train. Raises FleetError under strict where they differ."""
    compare()
    return original(trainer, *args, **kwargs)


@fleet.wrap(
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer.fit",
    why=_DIFFERS,
    how=_COMPARED,
    link="none: it is about our patches",
    retired_by=Never("it is about our patches"),
    requires=Defines("verl.trainer.ppo.v1.trainer_base:PPOTrainer.fit"),
)
def compared_before_v1_trains(original: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """Compare the processes, then train. Raises FleetError under strict where they differ."""
    compare()
    return original(trainer, *args, **kwargs)


def compare() -> None:
    """Report whether the processes of this job agree. Raises FleetError under strict where they do not."""
    manifests = published()
    found = differences(manifests)
    if not found:
        reporting.report(f"{len(manifests)} processes agree on what is patched")
        return
    text = f"{len(manifests)} processes differ in what is patched: " + " | ".join(found)
    if environment.STRICT.read():
        raise FleetError(
            subject="the processes of this job",
            expected="that all of them are patched alike",
            found=text,
            fix="install the same verl-npu and upstreams on every host and set the same variables",
            override="VERL_NPU_STRICT=0",
        )
    reporting.warn(text)
