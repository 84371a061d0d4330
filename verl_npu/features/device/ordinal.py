"""Which of the NPUs that a worker sees is its own, where Ray was told to hide none."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ...registry.source.probe import Never
from .feature import device
from .verdict import has_ascend_software

__all__: list[str] = []


@device.wrap(
    "verl.single_controller.base.worker:Worker._setup_env_cuda_visible_devices",
    why="where Ray was told to hide no NPU, upstream takes the NPU's id on the host, or the rank in the group, for "
    "its place in the process's list: wrong or out of range for a list such as 1,3 or for a second job",
    how="the place in ASCEND_RT_VISIBLE_DEVICES of the NPU that Ray assigned",
    link="none: seen on virtual NPUs",
    retired_by=Never("no revision looks at ASCEND_RT_VISIBLE_DEVICES there"),
)
def own_npu(original: Callable[..., Any], worker: Any) -> Any:
    """Make the NPU that Ray assigned to this worker the current one."""
    from verl.utils.ray_utils import ray_noset_visible_devices

    assigned = _assigned() if has_ascend_software() and ray_noset_visible_devices() else None
    if assigned is None:
        return original(worker)
    import torch

    index = ordinal(assigned, os.environ.get("ASCEND_RT_VISIBLE_DEVICES"))
    # Upstream's name for it, here and in what reads it.
    os.environ["LOCAL_RANK"] = str(index)
    torch.npu.set_device(index)
    return None


def _assigned() -> str | None:
    import ray

    ids = ray.get_runtime_context().get_accelerator_ids().get("NPU", [])
    return str(ids[0]) if ids else None


def ordinal(assigned: str, visible: str | None) -> int:
    """The index, in a process that sees the NPUs `visible` (a comma list of ids; None: all), of the NPU `assigned`.

    Raises RuntimeError where it is not among them.
    """
    if visible is None:
        return int(assigned)
    ids = [text.strip() for text in visible.split(",")]
    if assigned not in ids:
        raise RuntimeError(
            f"Ray gave this worker NPU {assigned}, expected one of ASCEND_RT_VISIBLE_DEVICES={visible!r}: set the "
            "variable to the same list before `ray start` on this host, and not in the job"
        )
    return ids.index(assigned)
