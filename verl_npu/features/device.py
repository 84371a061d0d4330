"""The whole job knows that it runs on NPUs, and a job that cannot be placed says so."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..registry.patch import Feature
from ..registry.probe import Defines, Mentions, Never, Not

__all__ = ["DeviceContradictionError", "PlacementError", "device"]

device = Feature("device", "trainer.device left at its default ends on the NPU; a job that cannot be placed ends")

_DEFAULT = "cuda"


class DeviceContradictionError(RuntimeError):
    """The job asks for a device that this installation is not for."""


class PlacementError(RuntimeError):
    """A placement group asks for more than the cluster has."""


@device.wrap(
    "hydra.core.utils:run_job",
    why="trainer.device is cuda by default, and Ray then waits for ever for a GPU that an NPU cluster does not have",
    how="the composed configuration gets trainer.device=npu before any entry point sees it, unless the user set it",
    link="https://github.com/volcengine/verl/issues/3583",
    retired_by=Never("entry points that do not set the device themselves exist at every revision"),
)
def composed_device(original: Callable[..., Any], task_function: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
    """Resolve the device in the configuration that Hydra hands to an entry point, `python -m` included."""
    overrides = config.hydra.overrides.task if "hydra" in config else ()
    resolve_device(config, overrides)
    return original(task_function, config, *args, **kwargs)


@device.wrap(
    "verl.trainer.main_ppo:run_ppo",
    why="callers of run_ppo that do not come through Hydra leave trainer.device at cuda as well",
    how="the configuration gets trainer.device=npu before upstream's function reads it, unless it is not the default",
    link="https://github.com/volcengine/verl/issues/3583",
    retired_by=Mentions("verl.trainer.main_ppo:run_ppo", "auto_set_device"),
)
def called_device(original: Callable[..., Any], config: Any, *args: Any, **kwargs: Any) -> Any:
    """Resolve the device for a caller of `run_ppo`."""
    resolve_device(config, ())
    return original(config, *args, **kwargs)


@device.set(
    "verl.utils.device:is_npu_available",
    why="Ray hides all NPUs from actors that asked for none (TaskRunner, synchronisers), which then decide for nccl",
    how="the presence of Ascend software decides, so that every process of the job comes to the same verdict",
    link="https://github.com/volcengine/verl/issues/4651",
    retired_by=Never("a verdict taken on import depends on what is visible then, as long as it is taken"),
)
def software_decides(available: bool) -> bool:
    """Ascend software is there, or VERL_NPU=on was set without it and upstream's verdict stands."""
    return available or _has_ascend_software()


@device.set(
    "verl.utils.device:is_cuda_available",
    why="MindSpeed's transfer_to_npu makes torch.cuda.is_available true, and upstream asks for cuda first",
    how="a process whose torch has the NPU backend has no CUDA: torch_npu refuses to load beside it",
    link="none: the order of imports decides, see MindSpeed's mindspeed/megatron_adaptor.py",
    retired_by=Never("a verdict taken on import depends on what is visible then, as long as it is taken"),
)
def cuda_is_not_here(available: bool) -> bool:
    """There is no CUDA in a process with Ascend software."""
    return available and not _has_ascend_software()


def _has_ascend_software() -> bool:
    # Activation has imported it, where it can be.
    return "torch_npu" in sys.modules


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
    return original(pool, strategy, name, "npu" if device_name == _DEFAULT else device_name)


_OVERRIDES_CPU = "upstream sets trainer.device to npu even where the user asked for cpu"
_KEEPS_CPU = "an explicit cpu stays; everything else is upstream's to decide"


@device.wrap(
    "verl.utils.device:auto_set_ascend_device_name",
    why=_OVERRIDES_CPU,
    how=_KEEPS_CPU,
    link="https://github.com/volcengine/verl/pull/4489",
    retired_by=Never("every revision that has the function overrides cpu"),
    requires=Defines("verl.utils.device:auto_set_ascend_device_name"),
)
def ascend_unless_cpu(original: Callable[..., Any], config: Any) -> Any:
    """Set the device, unless it is cpu."""
    return _unless_cpu(original, config)


@device.wrap(
    "verl.utils.device:auto_set_device",
    why=_OVERRIDES_CPU,
    how=_KEEPS_CPU,
    link="https://github.com/volcengine/verl/pull/4489",
    retired_by=Never("every revision that has the function overrides cpu"),
    requires=Defines("verl.utils.device:auto_set_device"),
)
def npu_unless_cpu(original: Callable[..., Any], config: Any) -> Any:
    """Set the device, unless it is cpu."""
    return _unless_cpu(original, config)


def _unless_cpu(original: Callable[..., Any], config: Any) -> Any:
    trainer = config.get("trainer") if config else None
    if trainer is not None and trainer.get("device") == "cpu":
        return None
    return original(config)


def resolve_device(config: Any, overrides: Sequence[str]) -> None:
    """Set `config.trainer.device` to npu where it is the default, in place.

    `overrides` are the user's own words on the command line. Raises DeviceContradictionError where they ask for cuda.
    """
    trainer = config.get("trainer")
    if trainer is None or trainer.get("device") != _DEFAULT:
        return
    asked = [text for text in overrides if text.lstrip("+").split("=", 1)[0] == "trainer.device"]
    if asked:
        raise DeviceContradictionError(
            f"{asked[-1]}: this installation is for NPUs and has no CUDA; leave trainer.device out, or set it to npu "
            "(override: VERL_NPU_DISABLE=device)"
        )
    trainer.device = "npu"


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
