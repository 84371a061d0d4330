"""Limits of torch_npu's operators, as the documentation of op-plugin states them."""

from __future__ import annotations

__all__ = ["GROUPED_MATMUL_TENSORS", "ROTARY_MUL_WIDTH"]

GROUPED_MATMUL_TENSORS = 128
"""The most tensors that `npu_grouped_matmul` takes in one list (torch_npu-npu_grouped_matmul.md)."""

ROTARY_MUL_WIDTH = 896
"""`npu_rotary_mul` needs heads that are narrower than this (torch_npu-npu_rotary_mul.md)."""
