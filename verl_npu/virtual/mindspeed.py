"""The operators that MindSpeed compiles by itself against a CANN, computed on virtual NPUs without one.

Until MindSpeed 2.2.0 its fused rotary embedding is such an operator (ops/csrc/cann/npu_rotary_position_embedding.cpp);
later ones call torch_npu's.
"""

from __future__ import annotations

from enum import IntEnum
from types import ModuleType, SimpleNamespace

import torch

__all__ = ["offer_operators", "rotary_position_embedding"]

_NAME = "npu_rotary_position_embedding"
_DIMENSIONS = 4
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class _Rotation(IntEnum):
    HALF = 0
    INTERLEAVED = 1


def offer_operators(builder: ModuleType) -> None:
    """Enter them into `mindspeed.op_builder.builder` as if they had been compiled."""
    operators = SimpleNamespace(**{_NAME: rotary_position_embedding})
    builder.MindSpeedOpBuilder._loaded_ops.setdefault(_NAME, operators)


def rotary_position_embedding(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mode: int = 0) -> torch.Tensor:
    """x [seqlen, batch, heads, width], cos and sin of four dimensions that broadcast to it -> x, rotated.

    Source: the checks are those of MindSpeed's npu_rotary_position_embedding.cpp. Raises RuntimeError as they do.
    """
    for name, tensor in (("x", x), ("cos", cos), ("sin", sin)):
        if tensor.dtype not in _DTYPES:
            raise RuntimeError(f"{name} should be float32, float16 or bfloat16, but is {tensor.dtype}")
        if tensor.dim() != _DIMENSIONS:
            raise RuntimeError(f"{name} should have {_DIMENSIONS} dimensions, but has {tensor.dim()}")
    if x.shape[-1] % 2:
        raise RuntimeError(f"the width of a head must be even, but is {x.shape[-1]}")
    if cos.shape != sin.shape:
        raise RuntimeError(f"cos and sin must be alike, but are {tuple(cos.shape)} and {tuple(sin.shape)}")
    if mode not in tuple(_Rotation):
        raise RuntimeError(f"the mode should be 0 (halves) or 1 (interleaved), but is {mode}")
    if mode == _Rotation.HALF:
        first, second = x.chunk(2, dim=-1)
        turned = torch.cat((-second, first), dim=-1)
    else:
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    return x * cos + turned * sin
