"""npu_format_cast and npu_dtype_cast: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_format_cast.md.

Formats are how a real NPU lays a tensor out; shape and values do not change, and the virtual Ascend has one layout
only.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

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
    """ACL's numbers of the formats: `torch_npu.Format`, as torch_npu/npu/_format.py has them."""

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


def npu_format_cast(
    input: Tensor, acl_format: int, *, customize_dtype: int | None = None, input_dtype: int | None = None
) -> Tensor:
    """The same values in a new tensor; differentiable.

    Raises:
        RuntimeError: an unknown format.
        NotImplementedError: customize_dtype.
    """
    _check(acl_format, customize_dtype, input_dtype)
    return input.clone()


def npu_format_cast_(
    input: Tensor, acl_format: int, *, customize_dtype: int | None = None, input_dtype: int | None = None
) -> Tensor:
    """The tensor itself.

    Raises:
        RuntimeError: an unknown format.
        NotImplementedError: customize_dtype.
    """
    _check(acl_format, customize_dtype, input_dtype)
    return input


def npu_dtype_cast(input: Tensor, dtype: int | torch.dtype, input_dtype: int | None = None) -> Tensor:
    """The values in another dtype; differentiable.

    Raises:
        NotImplementedError: a number that is not one of torch's dtypes, input_dtype.
    """
    if input_dtype is not None:
        raise NotImplementedError("npu_dtype_cast: input_dtype is not implemented by the virtual Ascend")
    return input.to(dtype_of("npu_dtype_cast", dtype))


def dtype_of(operator: str, dtype: int | torch.dtype) -> torch.dtype:
    """torch's dtype for its number in a schema.

    Raises:
        NotImplementedError: it is none of torch's, but one of torch_npu's own.
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in _DTYPES:
        raise NotImplementedError(f"{operator}: dtype {dtype} is not implemented by the virtual Ascend")
    return _DTYPES[dtype]


def _check(acl_format: int, customize_dtype: int | None, input_dtype: int | None) -> None:
    if customize_dtype is not None or input_dtype is not None:
        raise NotImplementedError(
            "npu_format_cast: customize_dtype and input_dtype are not implemented by the virtual Ascend"
        )
    formats = [known for known in Format if known is not Format.UNDEFINED]
    if acl_format not in formats:
        known = ", ".join(f"{f.value} ({f.name})" for f in formats)
        raise RuntimeError(f"npu_format_cast: expected a format of {known}, but got {acl_format}")
