"""Makes Triton's interpreter compute bfloat16 in float32 and round to the nearest value, like NPUs.

Without this module, the interpreter treats the bits of bfloat16 as integers, and truncates when it converts. Float8
arithmetic raises an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Protocol, TypeAlias, TypeGuard, TypeVar

Value = TypeVar("Value")
Method: TypeAlias = Callable[..., object]


class Kind(Protocol):
    """A Triton type."""

    shape: Sequence[int]

    @property
    def scalar(self) -> Kind:
        """The type of the elements of this Triton type."""

    def is_fp8(self) -> bool:
        """Return whether this Triton type is a float8 type."""


class Dtype(Protocol):
    """A NumPy type."""

    kind: str


class Array(Protocol):
    """A NumPy array."""

    dtype: Dtype

    def astype(self, kind: object) -> Array:
        """Convert the array's numbers to another NumPy type."""

    def view(self, kind: object) -> Array:
        """Return a view of the array's bits as numbers of another NumPy type."""

    def __lshift__(self, bits: object) -> Array: ...


class Handle(Protocol):
    """A tensor in the interpreter: a NumPy array, and the Triton type of its elements."""

    data: Array
    dtype: Kind


class Block(Protocol):
    """A tensor in a kernel."""

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
"""For each computing method of the interpreter, the index of the argument that has the result's type."""


def compute_bfloat16(interpreter: ModuleType) -> None:
    """Make Triton's interpreter compute bfloat16 correctly."""
    builder = interpreter.InterpreterBuilder
    for name, index in _TYPE_OF_RESULT.items():
        setattr(builder, name, _in_float32(interpreter, getattr(builder, name), index))
    for name in ("cast_impl", "create_fp_to_fp"):
        setattr(builder, name, _converted(interpreter, getattr(builder, name)))
    builder.create_atomic_rmw = _refused(interpreter, builder.create_atomic_rmw)
    builder.get_bf16 = lambda self, value: _rounded(interpreter, self.get_fp32(value))
    patch = interpreter._patch_lang_tensor
    interpreter._patch_lang_tensor = _with_transposes(interpreter, patch)  # type: ignore[attr-defined]
    # Triton 3.2 misspells the name.
    reduction = getattr(interpreter, "ReduceScanOpIneterface", None) or interpreter.ReduceScanOpInterface
    reduction.apply = _refused_in_reductions(interpreter, reduction.apply)


def is_known(interpreter: ModuleType) -> bool:
    """Return whether this Triton release has every part of the interpreter that this module patches."""
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
            raise NotImplementedError(
                "virtual-ascend does not support float8 arithmetic: convert the values to another dtype first"
            )
        result = upstreams(self, *(_widened(interpreter, each) for each in given))
        if not _is_bfloat16(given[index], interpreter):
            return result
        # The result of a comparison has the type of its operands here, but not their bits.
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
    """Make the interpreter give `x.T` a block type. Triton 3.2 does not do this."""

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
            raise NotImplementedError("virtual-ascend does not support atomic operations on bfloat16")
        return upstreams(self, *given)

    return refuse


def _refused_in_reductions(interpreter: ModuleType, upstreams: Method) -> Method:
    @functools.wraps(upstreams)
    def refuse(self: object, given: Block | tuple[Block, ...]) -> object:
        for each in given if isinstance(given, tuple) else (given,):
            if _is_bfloat16(each.handle, interpreter):
                raise NotImplementedError("virtual-ascend does not support bfloat16 reductions: use float32")
        return upstreams(self, given)

    return refuse


def _is_handle(value: object, interpreter: ModuleType) -> TypeGuard[Handle]:
    return isinstance(value, interpreter.TensorHandle)


def _is_bfloat16(value: object, interpreter: ModuleType) -> TypeGuard[Handle]:
    """Return whether a value is stored as the bits of bfloat16. The result of a comparison has the type but not the
    bits."""
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
    """Convert bfloat16 to float32, and return all other values unchanged."""
    if not _is_bfloat16(value, interpreter):
        return value
    np = interpreter.np
    bits = value.data.astype(np.uint32) << np.uint32(16)
    wide: Handle = interpreter.TensorHandle(bits.view(np.float32), interpreter.tl.float32)
    return wide


def _rounded(interpreter: ModuleType, value: Handle) -> object:
    """Round float32 to bfloat16: to nearest, ties to even."""
    np = interpreter.np
    numbers = np.ascontiguousarray(value.data, dtype=np.float32)
    bits = numbers.view(np.uint32)
    half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = np.where(np.isnan(numbers), np.uint32(0x7FC0), (bits + half) >> np.uint32(16))
    return interpreter.TensorHandle(rounded.astype(np.uint16).reshape(np.shape(value.data)), interpreter.tl.bfloat16)
