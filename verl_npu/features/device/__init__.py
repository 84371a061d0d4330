"""The choice of the device, and errors for jobs that Ray cannot place. Jobs run on NPUs unless the user chose
otherwise."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from ... import environment
from ...ascend.variables import VISIBLE_DEVICES
from ...errors import JobSettingError
from ...registry.patch import Feature
from ...registry.source.probe import Calls, Defines, Never

if TYPE_CHECKING:
    from ..configuration import Section
    from .placement import Resources

device = Feature(
    "device", "Jobs run on NPUs unless the user chose another device. A job that cannot be placed ends with an error."
)

DEFAULT_DEVICE = "cuda"
"""The default device in upstream's configurations and signatures."""

_CONFIG = "verl/trainer/config"
_DEVICE = f"{_CONFIG}/ppo_trainer.yaml: trainer.device = {DEFAULT_DEVICE}"
_OTHER_DEVICES = tuple(
    f"{_CONFIG}/{program}.yaml: trainer.device = {DEFAULT_DEVICE}"
    for program in ("ppo_megatron_trainer", "sft_trainer", "sft_trainer_engine", "generation")
)
"""The default devices of the other programs. A default counts only where the program exists."""
_SET_ON_IMPORT = "upstream decides this once, on import, from the devices that are visible at that moment"


@device.set(
    "verl.utils.device:is_npu_available",
    why="Ray hides all NPUs from actors that asked for none, such as TaskRunner. They choose nccl while the workers "
    "choose hccl, or they fail with `No available nccl backend found on device type cpu`.",
    how="is_npu_available is true if torch_npu is imported, so every process of the job makes the same choice.",
    link="https://github.com/volcengine/verl/issues/4651",
    retired_by=Never(_SET_ON_IMPORT),
)
def detect_npu_by_installed_software(available: bool) -> bool:
    """Return True if Ascend software is present. Otherwise, return upstream's value. Without Ascend software, this
    function runs only if VERL_NPU=on is set."""
    return available or has_ascend_software()


@device.set(
    "verl.utils.device:is_cuda_available",
    why="MindSpeed's transfer_to_npu makes torch.cuda.is_available() true. Upstream checks for cuda before npu, so it "
    "then chooses cuda and nccl.",
    how="is_cuda_available is false in a process with torch_npu, because torch_npu cannot be loaded beside CUDA.",
    link="none: the order of imports decides, see MindSpeed's mindspeed/megatron_adaptor.py",
    retired_by=Never(_SET_ON_IMPORT),
)
def deny_cuda_beside_torch_npu(available: bool) -> bool:
    """Return False in a process with Ascend software. In any other process, return upstream's value."""
    return available and not has_ascend_software()


def has_ascend_software() -> bool:
    """Return whether torch_npu is imported. Activating verl-npu imports torch_npu if it can be imported."""
    return "torch_npu" in sys.modules


Result = TypeVar("Result")


@device.wrap(
    "hydra.core.utils:run_job",
    uses=(_DEVICE, "hydra.conf:HydraConf.overrides", "hydra.conf:OverridesConf.task"),
    may_use=_OTHER_DEVICES,
    why="trainer.device is cuda by default, so Ray waits forever for a GPU that an NPU cluster does not have.",
    how="Unless the user set trainer.device, we set it to npu in the composed configuration before the job starts.",
    link="https://github.com/volcengine/verl/issues/3583",
    retired_by=Never("every revision has entry points that do not set the device themselves"),
)
def set_npu_in_hydra_config(
    original: Callable[..., Result], task_function: object, config: Section, *args: object, **kwargs: object
) -> Result:
    """Set the device in the configuration that Hydra passes to a program, even if the program was started by
    `python -m`."""
    overrides = config.hydra.overrides.task if "hydra" in config else ()
    resolve_device(config, overrides)
    return original(task_function, config, *args, **kwargs)


@device.wrap(
    "verl.trainer.main_ppo:run_ppo",
    uses=(_DEVICE,),
    may_use=_OTHER_DEVICES,
    why="Programs that call run_ppo without Hydra also leave trainer.device at cuda, and wait forever.",
    how="If trainer.device has its default, we set it to npu before upstream's function reads it.",
    link="https://github.com/volcengine/verl/issues/3583",
    retired_by=Calls("verl.trainer.main_ppo:run_ppo", "auto_set_device"),
)
def set_npu_in_run_ppo_config(
    original: Callable[..., Result], config: Section, *args: object, **kwargs: object
) -> Result:
    """Set the device to `npu` in the configuration that a caller passes to `run_ppo`, unless the configuration names a
    device other than `cuda`."""
    resolve_device(config, ())
    return original(config, *args, **kwargs)


def keep_cpu(original: Callable[[Section], object], config: Section) -> object:
    """Let upstream set the device, unless the user set the device to cpu."""
    return None if _is_cpu(config) else original(config)


for _function in ("auto_set_ascend_device_name", "auto_set_device"):
    device.wrap(
        f"verl.utils.device:{_function}",
        uses=(f"{_CONFIG}/ppo_trainer.yaml: trainer.device",),
        why="Upstream sets trainer.device to npu even if the user set it to cpu.",
        how="If trainer.device is cpu, we do not call upstream's function.",
        link="https://github.com/volcengine/verl/pull/4489",
        retired_by=Never("every revision that has the function overrides cpu"),
        requires=Defines(f"verl.utils.device:{_function}"),
        name=f"keep_cpu_in_{_function}",
    )(keep_cpu)


def _is_cpu(config: Section | None) -> bool:
    trainer = config.get("trainer") if config else None
    return trainer is not None and trainer.get("device") == "cpu"


def resolve_device(config: Section, overrides: Sequence[str]) -> None:
    """Change `config.trainer.device` to npu if it has its default value, cuda.

    `overrides` are the user's command-line overrides. Raises JobSettingError if one of them requests cuda.
    """
    trainer = config.get("trainer")
    if trainer is None or trainer.get("device") != DEFAULT_DEVICE:
        return
    set_by_user = [text for text in overrides if text.lstrip("+").split("=", 1)[0] == "trainer.device"]
    if set_by_user:
        raise JobSettingError(
            subject=set_by_user[-1],
            expected="npu or no setting, because this installation is for NPUs and has no CUDA",
            found=DEFAULT_DEVICE,
            fix="remove trainer.device, or set it to npu",
            override="VERL_NPU_DISABLE=device",
        )
    trainer.device = "npu"


# Placement of a job.


class PlacementGroup(Protocol):
    """Ray's placement group."""

    def wait(self, timeout_seconds: float) -> bool: ...


Group = TypeVar("Group", bound=PlacementGroup)


_GROUPS = "verl.single_controller.ray.base:RayResourcePool.get_placement_groups"


@device.wrap(
    _GROUPS,
    why="extract_pg_from_exist, merge_resource_pool, and split_resource_pool pass no device, so the pool asks Ray for "
    "GPUs. An NPU cluster has none, and the job waits forever.",
    how="npu replaces the default device, cuda. Any other device is passed on.",
    link="https://github.com/volcengine/verl/issues/3583",
    retired_by=Calls(_GROUPS, "ray_resource_name"),
)
def request_npus_not_gpus(
    original: Callable[..., Result],
    pool: object,
    strategy: str = "STRICT_PACK",
    name: object = None,
    device_name: str = "cuda",
) -> Result:
    """Return the placement groups of a resource pool. If `device_name` is `cuda`, the default, the groups reserve
    NPUs."""
    return original(pool, strategy, name, "npu" if device_name == DEFAULT_DEVICE else device_name)


@device.wrap(
    "verl.single_controller.ray.base:placement_group",
    why="Upstream waits for its placement groups without a time limit, so a job that cannot be placed hangs silently.",
    how="If the nodes can never hold the group, the job ends with an error at once. If Ray has not placed the group "
    "within VERL_NPU_PLACEMENT_TIMEOUT seconds, we remove the group and the job ends with an error.",
    link="https://github.com/ray-project/ray/issues/55137",
    retired_by=Never("upstream waits without a time limit at every revision"),
    requires=Calls(_GROUPS, "placement_group"),
)
def refuse_job_that_cannot_be_placed(
    original: Callable[..., Group],
    bundles: Sequence[Resources],
    strategy: str = "PACK",
    *args: object,
    **kwargs: object,
) -> Group:
    """Create a placement group, and wait until Ray has placed it. Raises LaunchError if Ray cannot place it."""
    import ray

    from .placement import amounts, fits, refusal

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not fits(bundles, strategy, nodes):
        raise refusal(bundles, strategy, nodes, f"{amounts(bundles, nodes)} in the cluster")
    # Read the limit before making the group, so that an invalid value leaves no group behind.
    limit = environment.PLACEMENT_TIMEOUT.read()
    group = original(bundles, strategy, *args, **kwargs)
    start = time.monotonic()
    while not group.wait(timeout_seconds=1):
        if time.monotonic() - start > limit:
            free = amounts(bundles, [ray.available_resources()])
            ray.util.remove_placement_group(group)
            override = f"{environment.PLACEMENT_TIMEOUT.name}=<seconds>"
            raise refusal(bundles, strategy, nodes, f"{free} free after {limit:g} s", override)
    return group


@device.wrap(
    "verl.single_controller.base.worker:Worker._setup_env_cuda_visible_devices",
    uses=("verl.utils.ray_utils:ray_noset_visible_devices()",),
    why="If Ray hides no NPUs, upstream uses an NPU's id on the host, or the rank, as the index in the process. With "
    "NPUs 1,3 visible, workers fail with `invalid device ordinal`. A second job takes the first job's NPUs.",
    how="The index becomes the position in ASCEND_RT_VISIBLE_DEVICES of the NPU that Ray assigned to the worker.",
    link="none: seen on virtual NPUs",
    retired_by=Never("no revision reads ASCEND_RT_VISIBLE_DEVICES there"),
    may_skip=True,
)
def select_npu_assigned_by_ray(original: Callable[[object], object], worker: object) -> object:
    """Make the NPU that Ray assigned to this worker its current device."""
    from verl.utils.ray_utils import ray_noset_visible_devices

    assigned = _assigned_npu() if has_ascend_software() and ray_noset_visible_devices() else None
    if assigned is None:
        return original(worker)
    import torch

    from .placement import ordinal

    index = ordinal(assigned, os.environ.get(VISIBLE_DEVICES))
    # Upstream's function also sets this variable, and other upstream code reads it.
    os.environ["LOCAL_RANK"] = str(index)
    torch.npu.set_device(index)
    return None


def _assigned_npu() -> str | None:
    import ray

    ids = ray.get_runtime_context().get_accelerator_ids().get("NPU", [])
    return str(ids[0]) if ids else None
