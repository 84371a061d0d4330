"""Resource pools ask for NPUs, and a job that cannot be placed ends with what it asked for and what there is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...registry.source.probe import Mentions, Never, Not
from .feature import DEFAULT, device

__all__ = ["PlacementError"]


class PlacementError(RuntimeError):
    """A placement group asks for more than the cluster has."""


@device.wrap(
    "verl.single_controller.ray.base:RayResourcePool.get_placement_groups",
    why="extract_pg_from_exist, merge_resource_pool and split_resource_pool name no device, and so ask for GPUs",
    how="the default, cuda, means npu here",
    link="https://github.com/volcengine/verl/issues/3583",
    retired_by=Not(Mentions("verl.single_controller.ray.base:RayResourcePool.get_placement_groups", "cuda")),
)
def npus_are_asked_for(
    original: Callable[..., Any], pool: Any, strategy: str = "STRICT_PACK", name: Any = None, device_name: str = "cuda"
) -> Any:
    """Make or give the placement groups of a resource pool."""
    return original(pool, strategy, name, "npu" if device_name == DEFAULT else device_name)


@device.wrap(
    "verl.single_controller.ray.base:placement_group",
    why="upstream waits for its placement groups without a limit, so a job that cannot be placed hangs in silence",
    how="a group that no node can ever hold is an error at once, one that is not placed in time an error after that",
    link="https://github.com/ray-project/ray/issues/55137",
    retired_by=Never("upstream waits without a limit at every revision"),
    requires=Mentions("verl.single_controller.ray.base:RayResourcePool.get_placement_groups", "placement_group"),
)
def placed_or_refused(
    original: Callable[..., Any],
    bundles: list[dict[str, float]],
    strategy: str = "PACK",
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Make a placement group and wait until it is placed. Raises PlacementError where that cannot be."""
    import ray

    totals = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    wanted = _sum(bundles)
    if not _fits(bundles, strategy, totals):
        raise PlacementError(_unplaceable(wanted, strategy, totals, "the cluster has", totals))

    # Before the group is made: a wrong setting must not leave one behind.
    limit = _placement_timeout()
    group = original(bundles, strategy, *args, **kwargs)
    began = time.monotonic()
    while not group.wait(timeout_seconds=1):
        if time.monotonic() - began > limit:
            free = ray.available_resources()
            ray.util.remove_placement_group(group)
            raise PlacementError(
                _unplaceable(wanted, strategy, totals, f"after {limit:.0f} s these were free:", [free])
                + " (override: VERL_NPU_PLACEMENT_TIMEOUT=<seconds>)"
            )
    return group


def _placement_timeout() -> float:
    text = os.environ.get("VERL_NPU_PLACEMENT_TIMEOUT", "120")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise PlacementError(
            f"VERL_NPU_PLACEMENT_TIMEOUT={text!r}: expected a number of seconds above 0; correct it or leave it out"
        )
    return seconds


def _fits(bundles: Sequence[Mapping[str, float]], strategy: str, nodes: Sequence[Mapping[str, float]]) -> bool:
    """Whether a cluster of `nodes`, all of it free, could hold `bundles`; may say yes too often, never no."""

    def holds(node: Mapping[str, float], need: Mapping[str, float]) -> bool:
        return all(node.get(resource, 0) >= amount for resource, amount in need.items())

    if strategy == "STRICT_PACK":
        return any(holds(node, _sum(bundles)) for node in nodes)
    if strategy == "STRICT_SPREAD" and len(bundles) > len(nodes):
        return False
    return holds(_sum(nodes), _sum(bundles)) and all(any(holds(node, b) for node in nodes) for b in bundles)


def _sum(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for resource, amount in part.items():
            total[resource] = total.get(resource, 0) + amount
    return total


def _unplaceable(
    wanted: Mapping[str, float],
    strategy: str,
    totals: Sequence[Mapping[str, float]],
    label: str,
    shown: Sequence[Mapping[str, float]],
) -> str:
    def amounts(resources: Mapping[str, float]) -> str:
        return ", ".join(f"{resources.get(name, 0):g} {name}" for name in wanted)

    on = "on one node" if strategy == "STRICT_PACK" else f"({strategy})"
    there = " | ".join(amounts(node) for node in shown) or "no node"
    has = _sum(totals)
    fixes = []
    if "CPU" in wanted and has.get("CPU", 0) <= wanted["CPU"]:
        fixes.append(f"raise ray_kwargs.ray_init.num_cpus (ray_init.num_cpus before v0.6) above {wanted['CPU']:g}")
    if "NPU" in wanted and has.get("NPU", 0) < wanted["NPU"]:
        fixes.append("lower trainer.n_gpus_per_node or trainer.nnodes, or make more NPUs visible")
    if "GPU" in wanted:
        fixes.append("leave trainer.device at its default or set it to npu: GPUs are asked for")
    fix = "; ".join(fixes) or "end what else runs on the cluster, or ask for less"
    return f"the job cannot be placed: it asks for {amounts(wanted)} {on}, {label} {there}; {fix}"
