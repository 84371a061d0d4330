"""`torch_npu.npu.utils`: functions about the current NPU, CANN, and overflows.

This module follows torch_npu/npu/utils.py on an Ascend 910B, which has infinities and NaN instead of saturation.
"""

from __future__ import annotations

import warnings

import torch
from packaging.version import Version
from virtual_ascend.settings import Settings as _Settings

from torch_npu._unimplemented import missing
from torch_npu.npu.device import (
    _get_device_index,
    current_device,
    device,
    device_of,
    finalize_dump,
    get_soc_version,
    init_dump,
    is_bf16_supported,
    set_device,
    set_dump,
    synchronize,
)
from torch_npu.npu.memory import ipc_collect
from torch_npu.npu.streams import StreamContext, current_stream, default_stream, set_stream, stream

__all__ = [
    "StreamContext",
    "_get_device_index",
    "clear_npu_overflow_flag",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_of",
    "finalize_dump",
    "get_cann_version",
    "get_npu_overflow_flag",
    "get_soc_version",
    "init_dump",
    "ipc_collect",
    "is_bf16_supported",
    "is_support_inf_nan",
    "npu_check_overflow",
    "set_device",
    "set_dump",
    "set_stream",
    "stream",
    "synchronize",
]

_settings = _Settings.read()
_OLDEST_VERSION = Version("8.1.RC1")
_CANN_PARTS = ("CANN", "RUNTIME", "COMPILER", "HCCL", "TOOLKIT", "OPP", "OPP_KERNEL")


def get_cann_version(module: str = "CANN") -> str:
    """Return the version of a component of CANN or, if `module` is `DRIVER`, the version of the driver. Return an
    empty string for any other name."""
    if module == "DRIVER":
        return _settings.driver_version
    return _settings.cann_version if module in _CANN_PARTS else ""


def _is_gte_cann_version(version: str, module: str = "CANN") -> bool:
    """Return whether a component of CANN has this version or a newer one.

    Raises:
        RuntimeError: `version` is older than 8.1.RC1, which the real function rejects.
        packaging.version.InvalidVersion: `version` is not a version.
    """
    if Version(version) < _OLDEST_VERSION:
        raise RuntimeError(f'When the version {version} is less than "8.1.RC1", this function is not supported')
    return Version(get_cann_version(module)) >= Version(version)


def is_support_inf_nan() -> bool:
    """Return True, because an Ascend 910B supports infinity and NaN."""
    return True


def npu_check_overflow(grad: float | torch.Tensor) -> bool:
    """Return whether a gradient has an infinity or a NaN.

    Raises:
        RuntimeError: `grad` is neither a float nor a tensor.
    """
    if not isinstance(grad, float | torch.Tensor):
        raise RuntimeError(f"Unsupported type: expected a float or a tensor; found {type(grad).__name__}")
    total = grad if isinstance(grad, float) else float(grad.float().sum())
    return total in (float("inf"), -float("inf")) or total != total


def get_npu_overflow_flag() -> bool:
    """Raise RuntimeError, because only NPUs with saturating arithmetic have this flag, and an Ascend 910B does not
    saturate.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError("Unsupported api when soc_version >= Ascend910B1, please use npu_check_overflow")


def clear_npu_overflow_flag() -> None:
    """Do nothing except warn, because an Ascend 910B has no overflow flag to clear."""
    warnings.warn(
        "When soc_version >= Ascend910B1, clear_npu_overflow_flag is useless, please remove it.", stacklevel=2
    )


globals().update(missing("torch_npu.npu.utils", globals()))
