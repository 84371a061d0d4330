"""The compiled part, as far as anybody reaches for it through torch_npu."""

from __future__ import annotations

from verl_npu.virtual.loading import extension

_npu_getDeviceCount = extension().device_count
_npu_getDevice = extension().current_device
_npu_setDevice = extension().set_device
