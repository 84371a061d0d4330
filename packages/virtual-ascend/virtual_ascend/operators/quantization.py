"""npu_dynamic_quant: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_dynamic_quant.md, as far as it makes int8
of each row by itself. vllm-ascend traces it, with models that are not quantised too."""

from __future__ import annotations

import torch
from torch import Tensor

from .gradient import without_formula

__all__ = ["npu_dynamic_quant"]

_INT8 = (None, torch.int8, 1)
"""By torch, and by the number that c10/core/ScalarType.h gives it: which of them comes is a matter of the schema."""
_GREATEST = 127


def npu_dynamic_quant(
    input: Tensor,
    *,
    smooth_scales: Tensor | None = None,
    group_index: Tensor | None = None,
    dst_type: int | torch.dtype | None = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """`round(x / scale)` in int8, with `scale = max(abs(x)) / 127` of each row; no gradient.

    Shapes: input [*,D], smooth_scales [D], by which it is multiplied before.

    Returns:
        (y int8 [*,D], scale float32 [*]).

    Raises:
        RuntimeError: shapes or dtypes that do not go together.
        NotImplementedError: groups of experts, and other types and modes.
    """
    name = "npu_dynamic_quant"
    others = {
        "group_index": group_index is not None,
        f"dst_type {dst_type}": dst_type not in _INT8,
        f"quant_mode {quant_mode}": quant_mode != "pertoken",
        "dst_type_max": dst_type_max != 0,
    }
    for what, asked in others.items():
        if asked:
            raise NotImplementedError(f"{name}: {what} is not implemented by the virtual Ascend")
    if input.dtype not in (torch.float16, torch.bfloat16) or input.dim() < 2:
        raise RuntimeError(
            f"{name}: input must be float16 or bfloat16 and have rows, but is {tuple(input.shape)} in {input.dtype}"
        )
    if smooth_scales is not None and (smooth_scales.shape != input.shape[-1:] or smooth_scales.dtype != input.dtype):
        raise RuntimeError(
            f"{name}: smooth_scales must be [{input.shape[-1]}] in {input.dtype}, but is "
            f"{tuple(smooth_scales.shape)} in {smooth_scales.dtype}"
        )

    def compute() -> tuple[Tensor, ...]:
        x = input.float() if smooth_scales is None else input.float() * smooth_scales.float()
        scale = x.abs().amax(dim=-1) / _GREATEST
        # Zeros have a scale of 0, and stay.
        divided = x / torch.where(scale == 0, torch.ones_like(scale), scale).unsqueeze(-1)
        return divided.round().to(torch.int8), scale

    y, scale = without_formula(name, (input, smooth_scales), compute)
    return y, scale
