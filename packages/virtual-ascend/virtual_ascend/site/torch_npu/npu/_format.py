"""`torch_npu.Format`: how a real NPU lays a tensor out. The virtual Ascend has ND and FRACTAL_NZ."""

from __future__ import annotations

from virtual_ascend.operators.layout import Format

__all__ = ["Format"]
