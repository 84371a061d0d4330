"""The graph engine's names: types for annotations, and functions that raise."""

from __future__ import annotations

from torch_npu._unimplemented import not_implemented

from torchair.ge import attr

__all__ = ["Cast", "Const", "DataType", "Tensor", "TensorSpec", "attr", "custom_op"]


class Tensor:
    """A tensor of a graph; there are none."""


class TensorSpec:
    """The shape and type of one."""


class DataType:
    """The graph engine's types."""


Cast = not_implemented("torchair.ge.Cast")
Const = not_implemented("torchair.ge.Const")
custom_op = not_implemented("torchair.ge.custom_op")
