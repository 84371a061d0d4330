"""npu_format_cast: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_format_cast.md.

Formats are how a real NPU lays a tensor out; shape and values do not change, and the virtual Ascend has one layout
only.
"""

from __future__ import annotations

from enum import IntEnum

from torch import Tensor


class Format(IntEnum):
    """ACL's numbers of the formats that are used."""

    NCHW = 0
    NHWC = 1
    ND = 2
    NC1HWC0 = 3
    FRACTAL_NZ = 29


def npu_format_cast(input: Tensor, acl_format: int, customize_dtype: int | None = None) -> Tensor:
    """The same values in a new tensor; differentiable.

    Raises:
        RuntimeError: an unknown format.
        NotImplementedError: customize_dtype.
    """
    _check(acl_format, customize_dtype)
    return input.clone()


def npu_format_cast_(input: Tensor, acl_format: int, customize_dtype: int | None = None) -> Tensor:
    """The tensor itself.

    Raises:
        RuntimeError: an unknown format.
        NotImplementedError: customize_dtype.
    """
    _check(acl_format, customize_dtype)
    return input


def _check(acl_format: int, customize_dtype: int | None) -> None:
    if customize_dtype is not None:
        raise NotImplementedError("npu_format_cast: customize_dtype is not implemented by the virtual Ascend")
    if acl_format not in list(Format):
        known = ", ".join(f"{f.value} ({f.name})" for f in Format)
        raise RuntimeError(f"npu_format_cast: expected a format of {known}, but got {acl_format}")
