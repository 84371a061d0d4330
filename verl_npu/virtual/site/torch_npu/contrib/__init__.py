"""torch_npu.contrib: nothing of it is implemented by the virtual Ascend."""
