"""torch_npu's old functions for autocast of the device `npu`, from before torch.amp took the name of a device."""

from __future__ import annotations

import torch

__all__ = ["get_autocast_dtype", "is_autocast_enabled", "set_autocast_dtype", "set_autocast_enabled"]


def is_autocast_enabled() -> bool:
    """Return whether autocast is on for operators on NPUs."""
    return bool(torch.is_autocast_enabled("npu"))


def set_autocast_enabled(enable: bool) -> None:
    """Turn autocast for operators on NPUs on or off."""
    torch.set_autocast_enabled("npu", enable)


def get_autocast_dtype() -> torch.dtype:
    """Return the dtype of autocast on NPUs."""
    return torch.get_autocast_dtype("npu")


def set_autocast_dtype(dtype: torch.dtype) -> None:
    """Set the dtype of autocast on NPUs."""
    torch.set_autocast_dtype("npu", dtype)
