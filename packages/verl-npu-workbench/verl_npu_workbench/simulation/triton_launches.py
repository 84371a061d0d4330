"""Records launches of Triton kernels as the compiler sees them: the types, the constants, and which arguments are 1 or
a multiple of 16.

If VERL_NPU_KERNEL_LAUNCHES names a file, each distinct launch is appended to it as a line of JSON, for `verl-npu
kernels --launches`.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FunctionType

from verl_npu import environment

_TYPES: Mapping[str, str] = {
    "bool": "i1",
    "float8_e4m3fn": "fp8e4nv",
    "float8_e4m3fnuz": "fp8e4b8",
    "float8_e5m2": "fp8e5",
    "float8_e5m2fnuz": "fp8e5b16",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
    **{f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
}
"""Triton's names for torch's types."""

Case = dict[str, object]
_seen: set[str] = set()
_collected: ContextVar[list[Case] | None] = ContextVar("collected", default=None)
_alternatives: ContextVar[list[Case] | None] = ContextVar("alternatives", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch of a kernel."""

    function: FunctionType
    arguments: Mapping[str, object]
    """The arguments by parameter name. Default values are included."""
    grid: tuple[int, ...]
    options: Mapping[str, object] = field(default_factory=dict)
    """The compiler's options, such as num_warps. The kernel's own parameters are not included."""
    unspecialized: Collection[str] = ()
    """Parameters that the compiler does not specialize for 1 or for multiples of 16."""
    unaligned: Collection[str] = ()
    """Parameters that the compiler does not specialize for multiples of 16."""


def recorded() -> bool:
    """Return whether this process records launches."""
    return environment.LAUNCHES.is_set()


def record(launch: Launch) -> bool:
    """Record a launch if this process records launches. Return True if the launch happens inside `collecting` and
    therefore must not run."""
    collected = _collected.get()
    if collected is not None:
        collected.append(case(launch))
        return True
    if recorded():
        _append(launch, _alternatives.get() or [case(launch)])
    return False


@contextlib.contextmanager
def collecting() -> Iterator[list[Case]]:
    """Within the `with` block, collect launches in a list instead of running them."""
    cases: list[Case] = []
    token = _collected.set(cases)
    try:
        yield cases
    finally:
        _collected.reset(token)


@contextlib.contextmanager
def tuned(cases: list[Case]) -> Iterator[None]:
    """Within the `with` block, record each launch with `cases`, the cases of all of the autotuner's configurations."""
    token = _alternatives.set(cases)
    try:
        yield
    finally:
        _alternatives.reset(token)


def case(launch: Launch) -> Case:
    """Convert a launch's arguments to the format that Triton 3.2 passes to the compiler."""
    made: Case = {"signature": {}, "constants": {}, "divisible": [], "ones": [], "options": {}, "guessed": False}
    signature: dict[str, str] = {}
    constants: dict[str, object] = {}
    divisible, ones = [], []
    for name, value in launch.arguments.items():
        annotation = _annotation(launch.function, name)
        if "constexpr" in annotation:
            constants[name] = _encoded(value, made)
            continue
        signature[name] = _annotated(annotation) or _type(value, "const" in annotation)
        if value is None:
            constants[name] = None
        elif name not in launch.unspecialized:
            if _is_one(value):
                ones.append(name)
                constants[name] = 1
            elif name not in launch.unaligned and _is_multiple(value):
                divisible.append(name)
    options = {name: value for name, value in launch.options.items() if isinstance(value, (bool, int, float, str))}
    return made | {
        "signature": signature, "constants": constants, "divisible": divisible, "ones": ones, "options": options,
    }  # fmt: skip


def _append(launch: Launch, cases: list[Case]) -> None:
    function = launch.function
    said = {
        "kernel": function.__name__,
        "module": function.__module__,
        "file": os.path.abspath(function.__code__.co_filename),
        "line": function.__code__.co_firstlineno,
        "cases": cases,
    }
    key = json.dumps(said, sort_keys=True)
    if key in _seen:
        return
    _seen.add(key)
    line = json.dumps({"schema": 1, **said, "grid": list(launch.grid)}) + "\n"
    path = environment.LAUNCHES.text().strip()
    # A single write in append mode is atomic, also if several processes write.
    with open(path, "ab", buffering=0) as file:
        file.write(line.encode())


def _annotation(function: FunctionType, name: str) -> str:
    found = function.__annotations__.get(name, "")
    return found if isinstance(found, str) else found.__name__ if isinstance(found, type) else repr(found)


def _annotated(annotation: str) -> str:
    """Return the type in a parameter's annotation, as Triton interprets it, or an empty string if there is no
    annotation."""
    for word, letter in (("uint", "u"), ("int", "i")):
        width = annotation[annotation.find(word) + len(word) :]
        if width and word in annotation:
            return f"{letter}{width}"
    return "u1" if annotation == "bool" else ""


def _type(value: object, const: bool) -> str:
    if value is None:
        return "*i8"
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(1 << 31) <= value < 1 << 31 else "u64" if value >= 1 << 63 else "i64"
    if isinstance(value, float):
        return "fp32"
    of = str(getattr(value, "dtype", "")).rpartition(".")[2]
    # `triton.reinterpret` gives a tensor one of Triton's own types, which has Triton's name.
    return ("*k" if const else "*") + _TYPES.get(of, of or type(value).__name__)


def _is_one(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value == 1


def _is_multiple(value: object) -> bool:
    address = getattr(value, "data_ptr", None)
    number = address() if callable(address) else value
    return isinstance(number, int) and number % 16 == 0


def _encoded(value: object, made: Case) -> object:
    """Return a constant as JSON, like `kernels.inside.compiling.encoded`. If that fails, set `why` in `made`."""
    kind = type(value).__name__
    if kind == "constexpr":
        return _encoded(getattr(value, "value", None), made)
    if kind == "dtype" and hasattr(value, "name"):
        return {"dtype": str(value.name)}
    if isinstance(value, (list, tuple)):
        return {"tuple": [_encoded(each, made) for each in value]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    made["why"] = f"a constant that cannot be written as JSON: {kind} {value!r}"[:200]
    return None
