"""torch_npu's folder of operator libraries."""
