"""torch_npu.contrib, of which virtual-ascend implements transfer_to_npu."""
