"""Where torch_npu has its operators' libraries."""
