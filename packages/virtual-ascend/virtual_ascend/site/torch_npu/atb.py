"""`torch_npu.atb`: the ATB operators that are not in torch_npu's top-level module."""

from __future__ import annotations

from torch_npu._operators import ATB

globals().update(ATB.get(__name__, {}))

__all__: list[str] = []
__all__ += ATB.get(__name__, {})
