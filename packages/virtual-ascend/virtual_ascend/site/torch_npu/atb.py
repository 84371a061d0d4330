"""`torch_npu.atb`: the operators of ATB that torch_npu does not offer at its top."""

from __future__ import annotations

from torch_npu._operators import ATB

globals().update(ATB.get(__name__, {}))

__all__: list[str] = []
__all__ += ATB.get(__name__, {})
