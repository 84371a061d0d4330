"""Autocast of the device `npu`, asked and set as torch_npu had it before torch.amp took the device's name."""

from __future__ import annotations

import torch

__all__ = ["get_autocast_dtype", "is_autocast_enabled", "set_autocast_dtype", "set_autocast_enabled"]


def is_autocast_enabled() -> bool:
    """Tell whether operators on NPUs are cast at present."""
    return bool(torch.is_autocast_enabled("npu"))


def set_autocast_enabled(enable: bool) -> None:
    """Cast operators on NPUs from now on, or no longer."""
    torch.set_autocast_enabled("npu", enable)


def get_autocast_dtype() -> torch.dtype:
    """What they are cast to."""
    return torch.get_autocast_dtype("npu")


def set_autocast_dtype(dtype: torch.dtype) -> None:
    """Cast them to `dtype`."""
    torch.set_autocast_dtype("npu", dtype)
