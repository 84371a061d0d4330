"""The compiled part, as far as anybody reaches for it through torch_npu."""

from __future__ import annotations

import sys

from virtual_ascend.device.extension import extension

from torch_npu import _distributed_c10d
from torch_npu._unimplemented import missing, not_implemented
from torch_npu.npu.device import get_soc_version

__all__ = [
    "_NPUTaskGroupHandle",
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

# A type for annotations, of what a graph's capture gives.
_NPUTaskGroupHandle = not_implemented("torch_npu._C._NPUTaskGroupHandle")

globals().update(missing("torch_npu._C", globals()))

# A module of its own name to those that import it.
sys.modules[f"{__name__}._distributed_c10d"] = _distributed_c10d
