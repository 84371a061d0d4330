"""`torch_npu.Format`: the memory layouts of a real NPU. virtual-ascend has ND and FRACTAL_NZ."""

from __future__ import annotations

from virtual_ascend.operators.layout import Format

__all__ = ["Format"]
