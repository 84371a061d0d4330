"""The compiled part, as far as anybody reaches for it through torch_npu."""

from __future__ import annotations

from torch_npu import _distributed_c10d
from torch_npu._unimplemented import missing
from torch_npu.npu.device import get_soc_version
from verl_npu.virtual.device.extension import extension

__all__ = [
    "_distributed_c10d",
    "_npu_getCurrentRawStream",
    "_npu_getDevice",
    "_npu_getDeviceCount",
    "_npu_get_soc_version",
    "_npu_setDevice",
]

_npu_getDeviceCount = extension().device_count
_npu_getDevice = extension().current_device
_npu_setDevice = extension().set_device
_npu_getCurrentRawStream = extension().current_stream_id
_npu_get_soc_version = get_soc_version

globals().update(missing("torch_npu._C", globals()))
