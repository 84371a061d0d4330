"""The parts of an environment for verl on NPUs."""

from __future__ import annotations

import enum

__all__ = ["Component"]


class Component(enum.Enum):
    """One part. Its value is the name by which commands and pages call it."""

    PYTHON = "python"
    CANN = "cann"
    DRIVER = "driver"
    """Driver and firmware, which upstream's documents call HDK."""
    TORCH = "torch"
    TORCH_NPU = "torch_npu"
    TORCHVISION = "torchvision"
    VLLM = "vllm"
    VLLM_ASCEND = "vllm-ascend"
    SGLANG = "sglang"
    TRANSFORMERS = "transformers"
    TENSORDICT = "tensordict"
    NUMPY = "numpy"
    EINOPS = "einops"
    RAY = "ray"
    PEFT = "peft"
    PYARROW = "pyarrow"
    TRANSFER_QUEUE = "TransferQueue"
    MINDSPEED = "mindspeed"
    MEGATRON = "megatron-core"
    MBRIDGE = "mbridge"
    TRITON = "triton"
    TRITON_ASCEND = "triton-ascend"
    FLASH_ATTN = "flash-attn"
    LIGER_KERNEL = "liger-kernel"

    @property
    def is_distribution(self) -> bool:
        """Whether its value is the name of a Python distribution."""
        return self not in (Component.PYTHON, Component.CANN, Component.DRIVER)
