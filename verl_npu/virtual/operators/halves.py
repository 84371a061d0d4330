"""The dtypes of kernels for inference: float16 and bfloat16 on a real NPU, and here float32 as well.

With float32 a rollout's tokens can be compared with transformers' one by one. A warning says once that an NPU refuses
it.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

__all__ = ["check_half"]

_warned: set[str] = set()


def check_half(operator: str, argument: str, tensor: Tensor) -> None:
    """Raise RuntimeError unless the tensor is of a half precision; warn, once for each operator, if it is float32."""
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return
    if tensor.dtype != torch.float32:
        raise RuntimeError(f"{operator}: {argument} must be float16 or bfloat16, but is {tensor.dtype}")
    if operator not in _warned:
        _warned.add(operator)
        warnings.warn(
            f"{operator} computes float32 on virtual NPUs only: a real NPU takes float16 and bfloat16", stacklevel=2
        )
