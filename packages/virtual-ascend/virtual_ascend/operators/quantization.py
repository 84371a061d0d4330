"""npu_dynamic_quant and npu_quantize to int8, with a scale computed for each row, or with given scales.

Source: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_dynamic_quant.md and torch_npu-npu_quantize.md.
vllm-ascend traces these operators even for models that are not quantized.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .gradient import without_formula

_INT8 = (None, torch.int8, 1)
"""torch's dtype, and its number in c10/core/ScalarType.h. The schema determines which of them is passed."""
_QINT8 = (torch.qint8, torch.int8, 12, 1)
_GREATEST = 127
_LEAST = -128
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def npu_dynamic_quant(
    input: Tensor,
    *,
    smooth_scales: Tensor | None = None,
    dst_type: int | torch.dtype | None = None,
    quant_mode: str = "pertoken",
) -> tuple[Tensor, Tensor]:
    """Quantize each row to int8: `round(x / scale)`, where `scale = max(abs(x)) / 127`. Has no backward pass.

    Shapes: input [*,D], smooth_scales [D]. The input is first multiplied by smooth_scales.

    Returns:
        (y int8 [*,D], scale float32 [*]).

    Raises:
        RuntimeError: shapes or dtypes do not match.
        NotImplementedError: an unsupported dtype or mode is requested.
    """
    name = "npu_dynamic_quant"
    others = {
        f"dst_type {dst_type}": dst_type not in _INT8,
        f"quant_mode {quant_mode}": quant_mode != "pertoken",
    }
    for what, asked in others.items():
        if asked:
            raise NotImplementedError(f"{name}: virtual-ascend does not implement {what}")
    if input.dtype not in (torch.float16, torch.bfloat16) or input.dim() < 2:
        raise RuntimeError(
            f"{name}: input must have at least 2 dimensions and dtype float16 or bfloat16, but has shape "
            f"{tuple(input.shape)} and dtype {input.dtype}"
        )
    if smooth_scales is not None and (smooth_scales.shape != input.shape[-1:] or smooth_scales.dtype != input.dtype):
        raise RuntimeError(
            f"{name}: smooth_scales must have shape [{input.shape[-1]}] and dtype {input.dtype}, but has shape "
            f"{tuple(smooth_scales.shape)} and dtype {smooth_scales.dtype}"
        )

    def compute() -> tuple[Tensor, ...]:
        x = input.float() if smooth_scales is None else input.float() * smooth_scales.float()
        scale = x.abs().amax(dim=-1) / _GREATEST
        # A row of zeros has the scale 0, and stays as it is.
        divided = x / torch.where(scale == 0, torch.ones_like(scale), scale).unsqueeze(-1)
        return divided.round().to(torch.int8), scale

    y, scale = without_formula(name, (input, smooth_scales), compute)
    return y, scale


def npu_quantize(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    dtype: int | torch.dtype,
    axis: int = 1,
    div_mode: bool = True,
) -> Tensor:
    """Quantize to int8: `round(input / scales + zero_points)` or, if `div_mode` is false, `round(input * scales +
    zero_points)`. Has no backward pass.

    Shapes: scales and zero_points have one of three shapes: [1]; [D], where D is the size of input's dimension `axis`;
    or the shape of input with every dimension except `axis` set to 1. If `div_mode` is false, -2 for `axis` means the
    second-to-last dimension, and any other value means the last dimension.

    Returns:
        An int8 tensor with the shape of input.

    Raises:
        RuntimeError: shapes or dtypes do not match.
        NotImplementedError: the dtype is not qint8.
    """
    name = "npu_quantize"
    if dtype not in _QINT8:
        raise NotImplementedError(f"{name}: virtual-ascend does not implement dtype {dtype}")
    if not -input.dim() <= axis < input.dim():
        raise RuntimeError(f"{name}: axis {axis} is out of range for an input with {input.dim()} dimensions")
    along = axis if div_mode else -2 if axis == -2 else -1
    if input.dtype not in _FLOATS:
        raise RuntimeError(f"{name}: input must be float32, float16 or bfloat16, but is {input.dtype}")
    if scales.dtype not in ((torch.float32, torch.bfloat16) if div_mode else _FLOATS):
        raise RuntimeError(f"{name}: scales must be float32 or bfloat16, but are {scales.dtype}")
    if zero_points is not None:
        allowed = (torch.int8, torch.uint8, torch.int32, torch.bfloat16) if div_mode else (scales.dtype,)
        if zero_points.dtype not in allowed:
            raise RuntimeError(
                f"{name}: zero_points must have one of the dtypes {allowed}, but have dtype {zero_points.dtype}"
            )
        if not div_mode and zero_points.shape != scales.shape:
            raise RuntimeError(
                f"{name}: zero_points must have the same shape as scales, {tuple(scales.shape)}, but has shape "
                f"{tuple(zero_points.shape)}"
            )
    form = [1] * input.dim()
    form[along] = input.shape[along]

    def spread(what: str, given: Tensor) -> Tensor:
        if given.shape not in ((1,), (form[along],)) and list(given.shape) not in (form, [1] * input.dim()):
            raise RuntimeError(
                f"{name}: {what} must have shape [{form[along]}], [1], or {form} for axis {axis} of an input with "
                f"shape {tuple(input.shape)}, but has shape {tuple(given.shape)}"
            )
        shape = [1] * input.dim()
        shape[along] = -1
        return given.float().reshape(shape)

    by, zero = spread("scales", scales), None if zero_points is None else spread("zero_points", zero_points)

    def compute() -> tuple[Tensor, ...]:
        x = input.float() / by if div_mode else input.float() * by
        return ((x if zero is None else x + zero).round().clamp(_LEAST, _GREATEST).to(torch.int8),)

    (y,) = without_formula(name, (input, scales, zero_points), compute)
    return y
