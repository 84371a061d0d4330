"""torch_npu.contrib, of which the virtual Ascend has transfer_to_npu."""
