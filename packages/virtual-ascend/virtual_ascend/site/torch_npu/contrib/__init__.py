"""The package torch_npu.contrib. virtual-ascend implements only transfer_to_npu."""
