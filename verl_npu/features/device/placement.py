"""Checks of whether a job fits on a cluster's nodes, and the index of the NPU that Ray assigned to a process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...ascend.variables import VISIBLE_DEVICES
from ...errors import LaunchError

Resources = Mapping[str, float]
"""Amounts of resources by name, for example {"CPU": 3, "NPU": 1}."""


def fits(bundles: Sequence[Resources], strategy: str, nodes: Sequence[Resources]) -> bool:
    """Return whether `bundles` would fit on `nodes` if nothing else ran on these nodes.

    A result of False is certain. A result of True may be incorrect, because the function does not try to distribute
    the bundles over the nodes.
    """

    def holds(node: Resources, need: Resources) -> bool:
        return all(node.get(resource, 0) >= amount for resource, amount in need.items())

    if strategy == "STRICT_PACK":
        return any(holds(node, _sum(bundles)) for node in nodes)
    if strategy == "STRICT_SPREAD" and len(bundles) > len(nodes):
        return False
    return holds(_sum(nodes), _sum(bundles)) and all(any(holds(node, b) for node in nodes) for b in bundles)


def _sum(parts: Sequence[Resources]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for resource, amount in part.items():
            total[resource] = total.get(resource, 0) + amount
    return total


def amounts(bundles: Sequence[Resources], nodes: Sequence[Resources]) -> str:
    """Return a string that lists the amount of each required resource on each node."""
    names = _sum(bundles)
    return " | ".join(", ".join(f"{node.get(name, 0):g} {name}" for name in names) for node in nodes) or "no node"


def refusal(
    bundles: Sequence[Resources], strategy: str, nodes: Sequence[Resources], found: str, override: str = ""
) -> LaunchError:
    """Return the error for a job that does not fit on the cluster."""
    place = "on one node" if strategy == "STRICT_PACK" else f"(strategy {strategy})"
    return LaunchError(
        subject="the job cannot be placed",
        expected=f"{amounts(bundles, [_sum(bundles)])} {place}",
        found=found,
        fix=_fix(_sum(bundles), _sum(nodes)),
        override=override,
    )


def _fix(needed: Resources, total: Resources) -> str:
    fixes = []
    if "CPU" in needed and total.get("CPU", 0) <= needed["CPU"]:
        fixes.append(f"raise ray_kwargs.ray_init.num_cpus (ray_init.num_cpus before v0.6) above {needed['CPU']:g}")
    if "NPU" in needed and total.get("NPU", 0) < needed["NPU"]:
        fixes.append("lower trainer.n_gpus_per_node or trainer.nnodes, or make more NPUs visible")
    if "GPU" in needed:
        fixes.append("leave trainer.device at its default or set it to npu, because the job requests GPUs")
    return "; ".join(fixes) or "stop the other jobs on the cluster, or reduce the resources that the job needs"


def ordinal(assigned: str, visible: str | None) -> int:
    """Return the index of the NPU `assigned` in a process that sees only the NPUs in `visible`.

    `assigned` is an NPU's id. `visible` is a list of ids separated by commas, or None if the process sees all NPUs.
    Raises LaunchError if `assigned` is not in the list.
    """
    if visible is None:
        return int(assigned)
    ids = [text.strip() for text in visible.split(",")]
    if assigned not in ids:
        raise LaunchError(
            subject=f"NPU {assigned}, which Ray assigned to this worker",
            expected=f"an NPU that {VISIBLE_DEVICES} lists",
            found=f"{VISIBLE_DEVICES}={visible!r}",
            fix=f"on this host, before you run `ray start`, set {VISIBLE_DEVICES} to the NPUs that the job needs; do "
            f"not set {VISIBLE_DEVICES} in the job",
            override="VERL_NPU_DISABLE=device",
        )
    return ids.index(assigned)
