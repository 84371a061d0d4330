"""Reads from the manifests of a run's processes the actions of verl-npu in each process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.errors import RunFailed
from verl_npu.features.fleet.comparison import differences
from verl_npu.manifest import Manifest, read_manifests

DONE = frozenset({"applied", "native", "absent"})
# A process that never imports a feature's targets stays pending. That is fine if another process applied the feature.
WAITING = "pending"


def read(folder: Path) -> list[Manifest]:
    """Return the manifests in a folder, sorted by role. Raise RunFailed if a manifest cannot be read."""
    found, unread = read_manifests(folder)
    if unread:
        raise RunFailed(str(unread[0])) from unread[0]
    return sorted(found, key=lambda manifest: (manifest["role"], manifest["pid"]))


def process(manifest: Manifest) -> str:
    """Return the name that reports use for a process."""
    return f"{manifest['role']}:{manifest['pid']}"


def states(manifest: Manifest) -> dict[str, str]:
    """Return the state of each feature in a process."""
    return {name: str(feature["state"]) for name, feature in manifest["features"].items()}


def by_process(manifests: Sequence[Manifest]) -> dict[str, dict[str, str]]:
    """Return the states of the features for each process."""
    return {process(manifest): states(manifest) for manifest in manifests}


def refusals(manifests: Sequence[Manifest]) -> dict[str, str]:
    """Return the patches that a process did not apply or that were overwritten later, each with the reason."""
    return {
        patch_id: str(patch["reason"])
        for manifest in manifests
        for feature in manifest["features"].values()
        for patch_id, patch in feature["patches"].items()
        if patch["state"] not in DONE and patch["state"] != WAITING
    }


def faults(
    manifests: Sequence[Manifest], processes: int, idle: Sequence[str] = (), applied: Sequence[str] = ()
) -> list[str]:
    """Return one line for each reason why a run is not considered correctly patched.

    The features in `idle` need not be applied, because the job does not import their targets. The patches in `applied`
    must be applied in every process, unless the process has no target for them.
    """
    found = []
    if len(manifests) < processes:
        found.append(f"expected manifests of {processes} processes or more; found {len(manifests)}")
    found += differences(manifests)
    for name in dict.fromkeys(name for manifest in manifests for name in manifest["features"]):
        here = {process(manifest): states(manifest).get(name, "missing") for manifest in manifests}
        if name not in idle and not DONE & set(here.values()):
            found.append(f"feature {name}: applied in no process")
        found += [f"feature {name}: {s} in {p}" for p, s in here.items() if s not in DONE and s != WAITING]
    for name in applied:
        states_here = {process(manifest): _patch(manifest, name) for manifest in manifests}
        found += [f"patch {name}: {state} in {where}" for where, state in states_here.items() if state not in DONE]
    return found


def _patch(manifest: Manifest, name: str) -> str:
    feature = manifest["features"].get(name.partition(".")[0])
    patch = feature["patches"].get(name) if feature is not None else None
    return "missing" if patch is None else str(patch["state"])
