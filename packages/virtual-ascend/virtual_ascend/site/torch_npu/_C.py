"""`torch_npu._C`: the names of the compiled part that programs use."""

from __future__ import annotations

import sys

from virtual_ascend.device.extension import extension

from torch_npu import _distributed_c10d
from torch_npu._unimplemented import leave_out, missing
from torch_npu.npu import graphs
from torch_npu.npu.device import get_soc_version
from torch_npu.npu.streams import is_current_stream_capturing

__all__ = [
    "_NPUTaskGroupHandle",
    "_distributed_c10d",
    "_graph_pool_handle",
    "_graph_task_group_begin",
    "_graph_task_group_end",
    "_graph_task_update_begin",
    "_graph_task_update_end",
    "_npu_getCurrentRawStream",
    "_npu_getDevice",
    "_npu_getDeviceCount",
    "_npu_get_soc_version",
    "_npu_isCurrentStreamCapturing",
    "_npu_setDevice",
    "_weak_ref_tensor",
]

_npu_getDeviceCount = extension().device_count
_npu_getDevice = extension().current_device
_npu_setDevice = extension().set_device
_npu_getCurrentRawStream = extension().current_stream_id
_npu_get_soc_version = get_soc_version

_NPUTaskGroupHandle = extension().TaskGroup
_graph_pool_handle = graphs.graph_pool_handle
_graph_task_group_begin = graphs.graph_task_group_begin
_graph_task_group_end = graphs.graph_task_group_end
_graph_task_update_begin = graphs.graph_task_update_begin
_graph_task_update_end = graphs.graph_task_update_end
_npu_isCurrentStreamCapturing = is_current_stream_capturing
_weak_ref_tensor = extension().weak_tensor

globals().update(missing("torch_npu._C", globals()))
__all__ = leave_out("torch_npu._C", globals(), __all__)

# So that `import torch_npu._C._distributed_c10d` works.
sys.modules[f"{__name__}._distributed_c10d"] = _distributed_c10d
