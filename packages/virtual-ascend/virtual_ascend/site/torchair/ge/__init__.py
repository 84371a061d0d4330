"""The names of the graph engine: types for annotations, and functions that raise."""

from __future__ import annotations

from torch_npu._unimplemented import not_implemented

from torchair.ge import attr

__all__ = ["Cast", "Const", "DataType", "Tensor", "TensorSpec", "attr", "custom_op"]


class Tensor:
    """A stand-in for torchair's class of graph tensors. Code can import the class and use it in annotations, but no
    instance is ever created."""


class TensorSpec:
    """The shape and type of a tensor."""


class DataType:
    """The data types of the graph engine."""


Cast = not_implemented("torchair.ge.Cast")
Const = not_implemented("torchair.ge.Const")
custom_op = not_implemented("torchair.ge.custom_op")
