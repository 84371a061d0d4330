"""torch_npu.contrib, as far as the virtual Ascend has it: transfer_to_npu."""
