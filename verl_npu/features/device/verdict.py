"""Whether this process belongs to a job on NPUs. The installed software decides, and not the visible devices."""

from __future__ import annotations

import sys

from ...registry.source.probe import Never
from .feature import device

__all__ = ["deny_cuda_beside_torch_npu", "detect_npu_by_installed_software", "has_ascend_software"]

_STILL_A_CONSTANT = "upstream decides this once, on import, and from the devices that are visible then"


@device.set(
    "verl.utils.device:is_npu_available",
    why="Ray hides all NPUs from actors that asked for none, such as TaskRunner: they choose nccl while the workers "
    "choose hccl, or fail with `No available nccl backend found on device type cpu`.",
    how="is_npu_available is true if torch_npu is imported, so every process of the job decides the same.",
    link="https://github.com/volcengine/verl/issues/4651",
    retired_by=Never(_STILL_A_CONSTANT),
)
def detect_npu_by_installed_software(available: bool) -> bool:
    """Return true if there is Ascend software; without it (VERL_NPU=on forces that), upstream's value stands."""
    return available or has_ascend_software()


@device.set(
    "verl.utils.device:is_cuda_available",
    why="MindSpeed's transfer_to_npu makes torch.cuda.is_available() true. Upstream looks for cuda before npu, so it "
    "then chooses cuda and nccl.",
    how="is_cuda_available is false in a process with torch_npu, which cannot be loaded beside CUDA.",
    link="none: the order of imports decides, see MindSpeed's mindspeed/megatron_adaptor.py",
    retired_by=Never(_STILL_A_CONSTANT),
)
def deny_cuda_beside_torch_npu(available: bool) -> bool:
    """Return false in a process with Ascend software."""
    return available and not has_ascend_software()


def has_ascend_software() -> bool:
    """Return whether torch_npu is imported, which activation does if it can be."""
    return "torch_npu" in sys.modules
