"""The old types of tensors and storages, such as `torch.npu.BFloat16Tensor`, which Megatron uses to check tensors."""

from __future__ import annotations

import torch
from torch.storage import _LegacyStorage


class _NpuTensorType(type):
    """The metaclass of tensor types: as with torch's own types, an NPU tensor of the dtype is an instance."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and instance.device.type == "npu" and instance.dtype == cls.dtype


def _type(name: str) -> _NpuTensorType:
    old = getattr(torch, name)

    def make(cls: type, *args: object) -> torch.Tensor:
        return old(*args).to("npu")

    return _NpuTensorType(name, (), {"__new__": make, "__module__": "torch.npu", "dtype": old.dtype})


BFloat16Tensor = _type("BFloat16Tensor")
BoolTensor = _type("BoolTensor")
ByteTensor = _type("ByteTensor")
CharTensor = _type("CharTensor")
DoubleTensor = _type("DoubleTensor")
FloatTensor = _type("FloatTensor")
HalfTensor = _type("HalfTensor")
IntTensor = _type("IntTensor")
LongTensor = _type("LongTensor")
ShortTensor = _type("ShortTensor")


def _storage(name: str) -> type:
    # torch finds the device of such a type by its module.
    dtype = getattr(torch, name)._dtype
    return type(name, (_LegacyStorage,), {"__module__": "torch.npu", "dtype": dtype, "_dtype": dtype})


BFloat16Storage = _storage("BFloat16Storage")
BoolStorage = _storage("BoolStorage")
ByteStorage = _storage("ByteStorage")
CharStorage = _storage("CharStorage")
DoubleStorage = _storage("DoubleStorage")
FloatStorage = _storage("FloatStorage")
HalfStorage = _storage("HalfStorage")
IntStorage = _storage("IntStorage")
LongStorage = _storage("LongStorage")
ShortStorage = _storage("ShortStorage")
