"""Facts about Ascend's software: its environment variables, and the import of torch_npu."""
