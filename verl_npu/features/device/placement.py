"""Resource pools ask for NPUs, workers take those that Ray assigned, and a job that cannot be placed is refused."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from ... import environment
from ...ascend.variables import VISIBLE_DEVICES
from ...errors import HiddenDeviceError, PlacementError
from ...registry.source.probe import Calls, Keys, Never
from .choice import has_ascend_software
from .feature import DEFAULT_DEVICE, device

Resources = Mapping[str, float]
"""Amounts by the name of the resource, for example {"CPU": 3, "NPU": 1}."""


class PlacementGroup(Protocol):
    """Ray's placement group."""

    def wait(self, timeout_seconds: float) -> bool: ...


Result = TypeVar("Result")
Group = TypeVar("Group", bound=PlacementGroup)


_GROUPS = "verl.single_controller.ray.base:RayResourcePool.get_placement_groups"


@device.wrap(
    _GROUPS,
    why="extract_pg_from_exist, merge_resource_pool and split_resource_pool pass no device, so the pool asks Ray for "
    "GPUs. An NPU cluster has none, and the job waits without end.",
    how="The default device, cuda, is replaced by npu; any other device is passed on.",
    link="https://github.com/volcengine/verl/issues/3583",
    retired_by=Keys(_GROUPS, "bundle", "ray_resource_name"),
)
def request_npus_not_gpus(
    original: Callable[..., Result],
    pool: object,
    strategy: str = "STRICT_PACK",
    name: object = None,
    device_name: str = "cuda",
) -> Result:
    """Return the placement groups of a resource pool."""
    return original(pool, strategy, name, "npu" if device_name == DEFAULT_DEVICE else device_name)


@device.wrap(
    "verl.single_controller.ray.base:placement_group",
    why="Upstream waits for its placement groups without a limit, so a job that cannot be placed hangs silently.",
    how="If the nodes can never hold the group, that is an error at once. A group that is not placed within "
    "VERL_NPU_PLACEMENT_TIMEOUT seconds is removed, and that is an error as well.",
    link="https://github.com/ray-project/ray/issues/55137",
    retired_by=Never("upstream waits without a limit at every revision"),
    requires=Calls(_GROUPS, "placement_group"),
)
def refuse_job_that_cannot_be_placed(
    original: Callable[..., Group],
    bundles: Sequence[Resources],
    strategy: str = "PACK",
    *args: object,
    **kwargs: object,
) -> Group:
    """Make a placement group and wait until it is placed. Raises PlacementError if it cannot be."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not _fits(bundles, strategy, nodes):
        raise _refusal(bundles, strategy, nodes, f"{_amounts(bundles, nodes)} in the cluster")
    # It is read before the group is made, so that a wrong value does not leave a group behind.
    limit = environment.PLACEMENT_TIMEOUT.read()
    group = original(bundles, strategy, *args, **kwargs)
    start = time.monotonic()
    while not group.wait(timeout_seconds=1):
        if time.monotonic() - start > limit:
            free = _amounts(bundles, [ray.available_resources()])
            ray.util.remove_placement_group(group)
            override = f"{environment.PLACEMENT_TIMEOUT.name}=<seconds>"
            raise _refusal(bundles, strategy, nodes, f"{free} free after {limit:g} s", override)
    return group


def _fits(bundles: Sequence[Resources], strategy: str, nodes: Sequence[Resources]) -> bool:
    """Return whether `nodes`, if nothing ran on them, could hold `bundles`.

    True may be wrong, because bundles are not distributed over the nodes one by one; False is certain.
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


def _amounts(bundles: Sequence[Resources], nodes: Sequence[Resources]) -> str:
    """Return what each node has of the resources that the bundles need."""
    names = _sum(bundles)
    return " | ".join(", ".join(f"{node.get(name, 0):g} {name}" for name in names) for node in nodes) or "no node"


def _refusal(
    bundles: Sequence[Resources], strategy: str, nodes: Sequence[Resources], found: str, override: str = ""
) -> PlacementError:
    place = "on one node" if strategy == "STRICT_PACK" else f"(strategy {strategy})"
    return PlacementError(
        subject="the job cannot be placed",
        expected=f"{_amounts(bundles, [_sum(bundles)])} {place}",
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
        fixes.append("leave trainer.device at its default or set it to npu, because the job asks for GPUs")
    return "; ".join(fixes) or "end what else runs on the cluster, or lower what the job needs"


@device.wrap(
    "verl.single_controller.base.worker:Worker._setup_env_cuda_visible_devices",
    uses=("verl.utils.ray_utils:ray_noset_visible_devices()",),
    why="If Ray hides no NPUs, upstream uses an NPU's id on the host, or the rank, as the index in the process. "
    "Workers fail with `invalid device ordinal` if the list is 1,3, and a second job takes the first one's NPUs.",
    how="The index is the position in ASCEND_RT_VISIBLE_DEVICES of the NPU that Ray assigned to the worker.",
    link="none: seen on virtual NPUs",
    retired_by=Never("no revision reads ASCEND_RT_VISIBLE_DEVICES there"),
)
def select_npu_assigned_by_ray(original: Callable[[object], object], worker: object) -> object:
    """Make the NPU that Ray assigned to this worker the current one."""
    from verl.utils.ray_utils import ray_noset_visible_devices

    assigned = _assigned_npu() if has_ascend_software() and ray_noset_visible_devices() else None
    if assigned is None:
        return original(worker)
    import torch

    index = ordinal(assigned, os.environ.get(VISIBLE_DEVICES))
    # Upstream's function sets this variable as well, and other code of upstream reads it.
    os.environ["LOCAL_RANK"] = str(index)
    torch.npu.set_device(index)
    return None


def _assigned_npu() -> str | None:
    import ray

    ids = ray.get_runtime_context().get_accelerator_ids().get("NPU", [])
    return str(ids[0]) if ids else None


def ordinal(assigned: str, visible: str | None) -> int:
    """Return the index of the NPU with the id `assigned` in a process that sees the NPUs `visible`.

    `visible` is a list of ids separated by commas; None means all NPUs. Raises HiddenDeviceError if `assigned` is not
    in the list.
    """
    if visible is None:
        return int(assigned)
    ids = [text.strip() for text in visible.split(",")]
    if assigned not in ids:
        raise HiddenDeviceError(
            subject=f"NPU {assigned}, which Ray assigned to this worker",
            expected=f"one of those in {VISIBLE_DEVICES}",
            found=f"{VISIBLE_DEVICES}={visible!r}",
            fix="set the variable to the same list before `ray start` on this host, and not in the job",
            override="VERL_NPU_DISABLE=device",
        )
    return ids.index(assigned)
