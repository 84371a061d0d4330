"""The index of a worker's own NPU among those that it sees, if Ray is set to hide none."""

from __future__ import annotations

import os
from collections.abc import Callable

from ...ascend.variables import VISIBLE_DEVICES
from ...errors import HiddenDeviceError
from ...registry.source.probe import Never
from .feature import device
from .verdict import has_ascend_software

__all__ = ["ordinal", "select_npu_assigned_by_ray"]


@device.wrap(
    "verl.single_controller.base.worker:Worker._setup_env_cuda_visible_devices",
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
