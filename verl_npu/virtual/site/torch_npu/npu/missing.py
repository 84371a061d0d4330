"""Parts of torch.npu that the virtual Ascend lacks: graphs and memory pools."""

from __future__ import annotations

from torch_npu._unimplemented import not_implemented

ExternalEvent = not_implemented("torch_npu.npu.ExternalEvent")
MemPool = not_implemented("torch_npu.npu.MemPool")
NPUGraph = not_implemented("torch_npu.npu.NPUGraph")
NPUPluggableAllocator = not_implemented("torch_npu.npu.NPUPluggableAllocator")
graph = not_implemented("torch_npu.npu.graph")
graph_task_group_begin = not_implemented("torch_npu.npu.graph_task_group_begin")
graph_task_group_end = not_implemented("torch_npu.npu.graph_task_group_end")
graph_task_update_begin = not_implemented("torch_npu.npu.graph_task_update_begin")
graph_task_update_end = not_implemented("torch_npu.npu.graph_task_update_end")
use_mem_pool = not_implemented("torch_npu.npu.use_mem_pool")
