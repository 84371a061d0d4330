"""Environment variables of Ascend's software that verl's jobs on NPUs depend on."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "ALLOCATOR",
    "EXPANDABLE_SEGMENTS",
    "HCCL_INTERFACE",
    "HCCL_LIBRARY",
    "HOME",
    "NZ",
    "REQUIRED",
    "VISIBLE_DEVICES",
    "Requirement",
]

VISIBLE_DEVICES = "ASCEND_RT_VISIBLE_DEVICES"
"""The numbers of the NPUs that a process may use, separated by commas."""

HOME = "ASCEND_HOME_PATH"
"""The folder of CANN, the software on which torch_npu runs."""

HCCL_LIBRARY = "HCCL_SO_PATH"
"""The file libhccl.so that vllm-ascend loads."""

HCCL_INTERFACE = "HCCL_SOCKET_IFNAME"
"""The network interfaces over which the ranks of HCCL meet."""

ALLOCATOR = "PYTORCH_NPU_ALLOC_CONF"
"""The settings of torch_npu's caching allocator."""

EXPANDABLE_SEGMENTS = "expandable_segments:True"
"""The setting of the allocator with which vllm-ascend's sleep mode cannot work."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """A variable that must have one value in every process of a job."""

    name: str
    value: str
    reason: str


NZ = Requirement(
    "VLLM_ASCEND_ENABLE_NZ",
    "0",
    "vllm-ascend otherwise lays weights out in the format FRACTAL_NZ, and new weights that are copied into it are "
    "garbled without an error",
)

REQUIRED = (NZ,)
"""What every job with a rollout engine needs."""
