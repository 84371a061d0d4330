"""npu_format_cast and npu_dtype_cast: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_format_cast.md.

A format is a real NPU's memory layout of a tensor; it changes neither shape nor values. virtual-ascend lays out
tensors by their strides, or in FRACTAL_NZ (device/csrc/formats.h). Other formats are only names here.
"""

from __future__ import annotations

import functools
import warnings
from enum import IntEnum

import torch
from torch import Tensor

from ..device.extension import extension

# c10/core/ScalarType.h
_DTYPES = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    8: torch.complex32,
    9: torch.complex64,
    10: torch.complex128,
    11: torch.bool,
    15: torch.bfloat16,
}


class Format(IntEnum):
    """ACL's numbers for the storage formats. The same as `torch_npu.Format` in torch_npu/npu/_format.py."""

    UNDEFINED = -1
    NCHW = 0
    NHWC = 1
    ND = 2
    NC1HWC0 = 3
    FRACTAL_Z = 4
    NC1HWC0_C04 = 12
    HWCN = 16
    NDHWC = 27
    FRACTAL_NZ = 29
    NCDHW = 30
    NDC1HWC0 = 32
    FRACTAL_Z_3D = 33
    NC = 35
    NCL = 47

    def __str__(self) -> str:
        return self.name


def npu_format_cast(input: Tensor, acl_format: int) -> Tensor:
    """Return a tensor with the same values in this storage format, or the input itself if it already has the format.
    Differentiable.

    Raises:
        RuntimeError: the format is unknown, or a cast is needed while a graph is captured.
    """
    formats = [known for known in Format if known is not Format.UNDEFINED]
    if acl_format not in formats:
        known = ", ".join(f"{f.value} ({f.name})" for f in formats)
        raise RuntimeError(f"npu_format_cast: expected one of the formats {known}, but got {acl_format}")
    if (acl_format == Format.FRACTAL_NZ) is extension().is_fractal(input):
        return input
    if acl_format != Format.FRACTAL_NZ:
        return input.clone()
    if not _is_allowed(input):
        return input
    made: Tensor = _Fractal.apply(input)
    return made


def npu_format_cast_(input: Tensor, acl_format: int) -> Tensor:
    """Convert the tensor to this storage format, and return it. The tensor object stays the same, and gets new memory
    if necessary.

    Raises:
        RuntimeError: the format is unknown, or a cast is needed while a graph is captured.
    """
    made = npu_format_cast(input, acl_format)
    if made is not input:
        with torch.no_grad():
            input.set_(made)
    return input


def get_npu_format(input: Tensor) -> int:
    """Return the ID of the tensor's storage format, such as 29 for FRACTAL_NZ."""
    if extension().is_fractal(input):
        return Format.FRACTAL_NZ.value
    return {4: Format.NCHW, 5: Format.NCDHW}.get(input.dim(), Format.ND).value


def get_storage_size(input: Tensor) -> int:
    """Return how many elements fit into the tensor's memory."""
    return int(input.untyped_storage().nbytes() // input.element_size())


class _Fractal(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: object, tensor: Tensor) -> Tensor:
        return extension().to_fractal(tensor)

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        return gradients[0]


_allowed = False


def allow_internal_format(allowed: bool) -> None:
    """Set `torch.npu.config.allow_internal_format`. If the setting is off, casts to FRACTAL_NZ do nothing."""
    global _allowed
    _allowed = allowed


def _is_allowed(tensor: Tensor) -> bool:
    if not _allowed:
        _warn_once(
            "Cannot create tensor with interal format while allow_internel_format=False, tensor will be created with "
            "base format."
        )
        return False
    if tensor.dim() < 2:
        _warn_once("Cannot create tensor with NZ format while dim < 2, tensor will be created with ND format.")
        return False
    return True


@functools.cache
def _warn_once(text: str) -> None:
    warnings.warn(text, stacklevel=2)


def npu_dtype_cast(input: Tensor, dtype: int | torch.dtype) -> Tensor:
    """Cast a tensor to another dtype. Differentiable.

    Raises:
        NotImplementedError: the number does not correspond to a torch dtype.
    """
    return input.to(dtype_of("npu_dtype_cast", dtype))


def dtype_of(operator: str, dtype: int | torch.dtype) -> torch.dtype:
    """Return the torch dtype for the number that represents it in an operator's schema.

    Raises:
        NotImplementedError: the number represents a dtype that only torch_npu has.
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in _DTYPES:
        raise NotImplementedError(f"{operator}: virtual-ascend does not implement dtype {dtype}")
    return _DTYPES[dtype]
