"""bfloat16 in Triton's interpreter, which computes with its bits as if they were integers, and cuts off where it
converts to it: here it computes in float32 and rounds to the nearest, as NPUs do. Arithmetic in float8 is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Protocol, TypeAlias, TypeGuard, TypeVar

Value = TypeVar("Value")
Method: TypeAlias = Callable[..., object]


class Kind(Protocol):
    """A type of Triton's."""

    shape: Sequence[int]

    @property
    def scalar(self) -> Kind:
        """That of its elements."""

    def is_fp8(self) -> bool:
        """Whether it is one of the types with eight bits."""


class Dtype(Protocol):
    """A type of numpy's."""

    kind: str


class Array(Protocol):
    """numpy's."""

    dtype: Dtype

    def astype(self, kind: object) -> Array:
        """Convert its numbers."""

    def view(self, kind: object) -> Array:
        """Take its bits for another type's."""

    def __lshift__(self, bits: object) -> Array: ...


class Handle(Protocol):
    """A tensor within the interpreter: numpy's array, and Triton's type of its elements."""

    data: Array
    dtype: Kind


class Block(Protocol):
    """A tensor as a kernel has it."""

    handle: Handle
    type: Kind
    T: object


_TYPE_OF_RESULT = {
    "binary_op": 0,
    "unary_op": 0,
    "ternary_op": 2,
    "create_fma": 2,
    "create_dot": 2,
    "create_rsqrt": 0,
    "create_erf": 0,
}
"""By method of the interpreter that computes, which of its arguments has the type of its result."""


def compute_bfloat16(interpreter: ModuleType) -> None:
    """Have Triton's interpreter compute with bfloat16."""
    builder = interpreter.InterpreterBuilder
    for name, index in _TYPE_OF_RESULT.items():
        setattr(builder, name, _in_float32(interpreter, getattr(builder, name), index))
    for name in ("cast_impl", "create_fp_to_fp"):
        setattr(builder, name, _converted(interpreter, getattr(builder, name)))
    builder.create_atomic_rmw = _refused(interpreter, builder.create_atomic_rmw)
    builder.get_bf16 = lambda self, value: _rounded(interpreter, self.get_fp32(value))
    patch = interpreter._patch_lang_tensor
    interpreter._patch_lang_tensor = _with_transposes(interpreter, patch)  # type: ignore[attr-defined]
    # 3.2 spells it like this.
    reduction = getattr(interpreter, "ReduceScanOpIneterface", None) or interpreter.ReduceScanOpInterface
    reduction.apply = _refused_in_reductions(interpreter, reduction.apply)


def is_known(interpreter: ModuleType) -> bool:
    """Whether the interpreter of this release of Triton is made of what is changed here."""
    methods = [*_TYPE_OF_RESULT, "cast_impl", "create_fp_to_fp", "create_atomic_rmw", "get_fp32"]
    names = ["_patch_lang_tensor", "TensorHandle", "np", "tl"]
    reductions = ("ReduceScanOpIneterface", "ReduceScanOpInterface")
    return (
        all(hasattr(interpreter.InterpreterBuilder, each) for each in methods)
        and all(hasattr(interpreter, each) for each in names)
        and any(hasattr(interpreter, each) for each in reductions)
    )


def _in_float32(interpreter: ModuleType, upstreams: Callable[..., Handle], index: int) -> Method:
    @functools.wraps(upstreams)
    def compute(self: object, *given: object) -> object:
        if any(_has_float8(each, interpreter) for each in given) and upstreams.__name__ != "create_dot":
            raise NotImplementedError("arithmetic in float8 is not computed by the virtual Ascend: convert it first")
        result = upstreams(self, *(_widened(interpreter, each) for each in given))
        if not _is_bfloat16(given[index], interpreter):
            return result
        # A comparison's result has the type of what was compared, here too.
        is_number = result.data.dtype.kind == "f"
        return (
            _rounded(interpreter, result)
            if is_number
            else interpreter.TensorHandle(result.data, interpreter.tl.bfloat16)
        )

    return compute


def _converted(interpreter: ModuleType, upstreams: Method) -> Method:
    @functools.wraps(upstreams)
    def convert(self: object, source: Handle, target: Kind, *more: object) -> object:
        tl = interpreter.tl
        if _is_float8(source.dtype.scalar) or _is_float8(target.scalar):
            return upstreams(self, source, target, *more)
        source = _widened(interpreter, source)
        if target.scalar != tl.bfloat16:
            is_same = source.dtype.scalar == target.scalar
            return source if is_same else upstreams(self, source, target, *more)
        return _rounded(interpreter, interpreter.TensorHandle(source.data.astype(interpreter.np.float32), tl.float32))

    return convert


def _with_transposes(interpreter: ModuleType, upstreams: Method) -> Method:
    """`x.T` is a block there, which 3.2's forgets."""

    def transposed(self: Block) -> object:
        block = interpreter.tl.block_type(self.type.scalar, list(reversed(self.type.shape)))
        handle = interpreter.TensorHandle(interpreter.np.transpose(self.handle.data), self.handle.dtype)
        return interpreter.tl.tensor(handle, block)

    @functools.wraps(upstreams)
    def patch(tensor: Block, *more: object) -> object:
        result = upstreams(tensor, *more)
        tensor.T = property(transposed)
        return result

    return patch


def _refused(interpreter: ModuleType, upstreams: Method) -> Method:
    @functools.wraps(upstreams)
    def refuse(self: object, *given: object) -> object:
        if any(_is_bfloat16(each, interpreter) for each in given):
            raise NotImplementedError("an atomic operation on bfloat16 is not computed by the virtual Ascend")
        return upstreams(self, *given)

    return refuse


def _refused_in_reductions(interpreter: ModuleType, upstreams: Method) -> Method:
    @functools.wraps(upstreams)
    def refuse(self: object, given: Block | tuple[Block, ...]) -> object:
        for each in given if isinstance(given, tuple) else (given,):
            if _is_bfloat16(each.handle, interpreter):
                raise NotImplementedError("a reduction of bfloat16 is not computed by the virtual Ascend: use float32")
        return upstreams(self, given)

    return refuse


def _is_handle(value: object, interpreter: ModuleType) -> TypeGuard[Handle]:
    return isinstance(value, interpreter.TensorHandle)


def _is_bfloat16(value: object, interpreter: ModuleType) -> TypeGuard[Handle]:
    """Whether it has the bits of bfloat16; a comparison's result has its type alone."""
    if not _is_handle(value, interpreter) or value.data.dtype != interpreter.np.uint16:
        return False
    return bool(value.dtype.scalar == interpreter.tl.bfloat16)


def _has_float8(value: object, interpreter: ModuleType) -> bool:
    if not _is_handle(value, interpreter) or value.data.dtype != interpreter.np.uint8:
        return False
    return _is_float8(value.dtype.scalar)


def _is_float8(kind: Kind) -> bool:
    return bool(kind.is_fp8())


def _widened(interpreter: ModuleType, value: Value) -> Value | Handle:
    """bfloat16 as float32, and all else as it is."""
    if not _is_bfloat16(value, interpreter):
        return value
    np = interpreter.np
    bits = value.data.astype(np.uint32) << np.uint32(16)
    wide: Handle = interpreter.TensorHandle(bits.view(np.float32), interpreter.tl.float32)
    return wide


def _rounded(interpreter: ModuleType, value: Handle) -> object:
    """float32 as bfloat16: to the nearest, of two as near to the even one."""
    np = interpreter.np
    numbers = np.ascontiguousarray(value.data, dtype=np.float32)
    bits = numbers.view(np.uint32)
    half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = np.where(np.isnan(numbers), np.uint32(0x7FC0), (bits + half) >> np.uint32(16))
    return interpreter.TensorHandle(rounded.astype(np.uint16).reshape(np.shape(value.data)), interpreter.tl.bfloat16)
