"""Autocast of `torch.npu.amp`: torch's own, on the device `npu`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.amp import custom_bwd as _custom_bwd
from torch.amp import custom_fwd as _custom_fwd

__all__ = ["autocast", "custom_bwd", "custom_fwd"]


class autocast(torch.autocast):  # type: ignore[misc]
    """Equivalent to `torch.autocast("npu", ...)`."""

    def __init__(self, enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True) -> None:
        super().__init__("npu", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


def custom_fwd(
    fwd: Callable[..., object] | None = None, *, cast_inputs: torch.dtype | None = None
) -> Callable[..., object]:
    """Equivalent to `torch.amp.custom_fwd(device_type="npu")`."""
    wrapped: Callable[..., object] = _custom_fwd(fwd, device_type="npu", cast_inputs=cast_inputs)
    return wrapped


def custom_bwd(bwd: Callable[..., object]) -> Callable[..., object]:
    """Equivalent to `torch.amp.custom_bwd(device_type="npu")`."""
    wrapped: Callable[..., object] = _custom_bwd(bwd, device_type="npu")
    return wrapped
