"""Guesses a kernel's launch arguments from its source when no launch was seen.

A parameter is a pointer if the kernel, or a function that it passes the parameter to, loads from it, stores to it, or
uses it in pointer arithmetic. Everything else comes from annotations, names, defaults, and launches in the same file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Protocol, TypeAlias

from .launchers import CONDITION, Known, Typed
from .strangers import Stranger, strangers_in

_ACCESS = {"load", "store", "make_block_ptr", "make_tensor_descriptor", "advance"}
_INTEGER_DATA = re.compile(
    r"(^|_)(idx|idxs|index|indices|ids?|offsets?|offs|slots?|slot_mapping|table|tables|labels?|targets?|lens?|length|"
    r"lengths|seqlens?|cu_seqlens|cu|num|nums|count|counts|loc|locs|tokens?|positions?|pos|map|mapping|ptrs|start|"
    r"starts|end|ends|chunk_indices|chunk_offsets|block_table|block_tables|expert_ids|mask|flags?)(_ptr|_ptrs)?$",
    re.IGNORECASE,
)
_WIDE_DATA = re.compile(r"label|target|cu_|seqlens|slot|position|chunk_indices|chunk_offsets", re.IGNORECASE)
_REAL = re.compile(
    r"(^|_)(eps|epsilon|scale|softmax_scale|sm_scale|alpha|beta|gamma|temperature|temp|p|prob|lr|norm_eps|momentum|"
    r"smoothing|label_smoothing|softcap|logit_softcapping|threshold|weight_decay|rcp_temp|scaling|qk_scale|limit)$",
    re.IGNORECASE,
)
_FLAG = re.compile(
    r"^(USE|HAS|IS|ENABLE|DO|STORE|SAVE|RETURN|APPLY|WITH|SKIP|REVERSE|CAUSAL|TRANS|INPLACE)(_|$)|"
    r"^(use|has|is|enable|do|store|save|return|apply|with|skip|reverse)_|_(is|has)_",
    re.ASCII,
)
_BLOCK = re.compile(r"BLOCK|TILE|CHUNK|^B[A-Z0-9]{1,3}$|^BLK", re.IGNORECASE)
_TYPE = re.compile(r"dtype|_type$|^DT", re.IGNORECASE)
_SMALL_BLOCK, _WIDTH, _COUNT = 64, 128, 4
_MOST_VARIANTS = 24


@dataclass
class Use:
    """How a function's body uses each of the function's parameters."""

    pointers: set[str] = field(default_factory=set)
    integers: set[str] = field(default_factory=set)
    """Parameters that point to integers: indices, offsets, and masks."""
    addresses: set[str] = field(default_factory=set)
    """Parameters that point to values that are cast to pointers."""
    real: set[str] = field(default_factory=set)
    """Parameters that point to values that are converted to float32 after loading."""
    choices: dict[str, str | int] = field(default_factory=dict)
    """A likely value for a parameter, from the constants that it is compared with: the first string, or the largest
    integer."""


def use_of(function: ast.FunctionDef, of: Mapping[str, ast.FunctionDef], depth: int = 0) -> Use:
    """Return how a function uses its parameters. `of` contains the functions that the function may call."""
    parameters = {each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}
    assigned: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            assigned.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            assigned.setdefault(node.target.id, []).append(ast.Name(node.target.id, ast.Load()))
    found = Use()
    for call in (each for each in ast.walk(function) if isinstance(each, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if (name in _ACCESS or name.startswith("atomic_")) and isinstance(call.func, ast.Attribute):
            base = (
                call.args[0]
                if call.args
                else next((k.value for k in call.keywords if k.arg in ("base", "pointer")), None)
            )
            if base is not None:
                found.pointers |= set(_roots(base, assigned, parameters))
        elif name in of and depth < 4:
            inner = use_of(of[name], of, depth + 1)
            for given, parameter in _handed(call, of[name]):
                roots = set(_roots(given, assigned, parameters))
                for mine, theirs in (
                    (found.pointers, inner.pointers),
                    (found.integers, inner.integers),
                    (found.real, inner.real),
                    (found.addresses, inner.addresses),
                ):
                    mine |= roots if parameter in theirs else set()
    _types(function, assigned, parameters, found)
    numbers: dict[str, set[int]] = {}
    for node in (each for each in ast.walk(function) if isinstance(each, ast.Compare)):
        compared = [node.left, *node.comparators]
        values = [each.value for each in compared if isinstance(each, ast.Constant)]
        for each in compared:
            if values and isinstance(each, ast.Name) and each.id in parameters:
                if isinstance(values[0], str):
                    found.choices.setdefault(each.id, values[0])
                elif type(values[0]) is int and isinstance(node.ops[0], ast.Eq):
                    numbers.setdefault(each.id, set()).add(values[0])
    found.choices |= {name: max(each) for name, each in numbers.items() if len(each) > 1 and name not in found.choices}
    return found


def _handed(call: ast.Call, function: ast.FunctionDef) -> Iterator[tuple[ast.expr, str]]:
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    yield from zip(call.args, names, strict=False)
    yield from ((each.value, each.arg) for each in call.keywords if each.arg)


def _roots(
    value: ast.expr, assigned: Mapping[str, list[ast.expr]], parameters: set[str], seen: tuple[str, ...] = ()
) -> Iterator[str]:
    """Yield the parameters that a pointer expression starts from. In a sum, this is the leftmost parameter."""
    if isinstance(value, ast.Name):
        if value.id in parameters:
            yield value.id
        if value.id not in seen and len(seen) < 30:
            for each in assigned.get(value.id, ()):
                yield from _roots(each, assigned, parameters, (*seen, value.id))
    elif isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.Sub)):
        left = list(_roots(value.left, assigned, parameters, seen))
        yield from left or _roots(value.right, assigned, parameters, seen)
    elif isinstance(value, ast.IfExp):
        yield from _roots(value.body, assigned, parameters, seen)
        yield from _roots(value.orelse, assigned, parameters, seen)
    elif isinstance(value, ast.Call):
        # x.to(tl.pointer_type(…)), tl.multiple_of(x, 16), tl.make_block_ptr(x, …), tl.advance(x, …)
        inner = (
            value.func.value if isinstance(value.func, ast.Attribute) and value.func.attr in ("to", "cast") else None
        )
        if inner is None:
            inner = next(iter(value.args), None) or next((k.value for k in value.keywords if k.arg == "base"), None)
        if inner is not None:
            yield from _roots(inner, assigned, parameters, seen)


def _types(
    function: ast.FunctionDef, assigned: Mapping[str, list[ast.expr]], parameters: set[str], found: Use
) -> None:
    """Record which parameters point to integers, to addresses, and to values that are converted to float32."""
    loads: dict[str, set[str]] = {}
    for name, values in assigned.items():
        for value in values:
            for call in _loads(value):
                loads.setdefault(name, set()).update(_roots(call.args[0], assigned, parameters))
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "to"
            and node.args
        ):
            of = set()
            for call in _loads(node.func.value):
                of |= set(_roots(call.args[0], assigned, parameters))
            if isinstance(node.func.value, ast.Name):
                of |= loads.get(node.func.value.id, set())
            target = ast.unparse(node.args[0])
            if "pointer_type" in target:
                found.addresses |= of
            elif "float" in target:
                found.real |= of
            elif "int" in target:
                found.integers |= of
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and (node.func.attr in _ACCESS)
            and node.args
        ):
            # A value that is loaded and then added to a pointer is an index.
            for name in _names(node.args[0], assigned) - _plain_roots(node.args[0]):
                found.integers |= loads.get(name, set())
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "range":
            for each in ast.walk(node):
                if isinstance(each, ast.Name):
                    found.integers |= loads.get(each.id, set())


def _names(value: ast.expr, assigned: Mapping[str, list[ast.expr]]) -> set[str]:
    """Return all names in a pointer expression. Assignments are followed, but loads are not."""
    seen: set[str] = set()
    left: list[ast.AST] = [value]
    while left:
        node = left.pop()
        if isinstance(node, ast.Name) and node.id not in seen:
            seen.add(node.id)
            left += [each for each in assigned.get(node.id, ()) if not any(_loads(each))]
        left += ast.iter_child_nodes(node)
    return seen


def _plain_roots(value: ast.expr) -> set[str]:
    while isinstance(value, ast.BinOp):
        value = value.left
    return {value.id} if isinstance(value, ast.Name) else set()


def _loads(value: ast.expr) -> Iterator[ast.Call]:
    for node in ast.walk(value):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "load"
            and node.args
        ):
            yield node


Heuristic: TypeAlias = Callable[[Mapping[str, object]], object]
"""A function that is passed to `triton.heuristics`. It computes a constant from a launch's arguments."""


class Parameter(Protocol):
    """Triton's object for a kernel's parameter."""

    name: str
    is_constexpr: bool
    has_default: bool
    default: object
    annotation_type: str
    num: int


class Kernel(Protocol):
    """The subset of Triton's JITFunction that this module uses."""

    fn: FunctionType
    src: str
    cache_key: str
    params: Sequence[Parameter]
    used_global_vals: Mapping[tuple[str, int], tuple[object, object]]


@dataclass
class Guess:
    """Guessed arguments for one launch."""

    signature: dict[str, str] = field(default_factory=dict)
    constants: dict[str, object] = field(default_factory=dict)
    divisible: list[str] = field(default_factory=list)
    ones: list[str] = field(default_factory=list)
    guessed: set[str] = field(default_factory=set)
    """Parameters whose type or value is only inferred from their name and use, or that other launches may set
    differently."""


def guess(
    kernel: Kernel,
    use: Use,
    config: Mapping[str, object],
    given: Mapping[str, Known],
    values: Mapping[str, Heuristic],
) -> Guess:
    """Guess arguments for a launch of a kernel.

    Args:
        kernel: Triton's JITFunction.
        use: how the kernel's body uses its parameters.
        config: the values that one of the kernel's configurations sets.
        given: the arguments of a launch that was found in the kernel's source file.
        values: the functions passed to `triton.heuristics`; they are called last.
    """
    made = Guess()
    ones = _ones([each.name for each in kernel.params])
    for parameter in kernel.params:
        name = parameter.name
        if name in config:
            _note(made, parameter, config[name])
        elif name in values:
            continue
        elif name in given and (_is_constant(given[name]) if parameter.is_constexpr else given[name].value is None):
            made.guessed |= set() if given[name].sure else {name}
            _note(made, parameter, False if isinstance(given[name].value, Typed) else given[name].value)
        elif parameter.is_constexpr:
            made.guessed |= set() if parameter.has_default else {name}
            value: object = 1 if name in ones else use.choices.get(name) or constexpr(name)
            _note(made, parameter, parameter.default if parameter.has_default else value)
        elif parameter.has_default and parameter.default is None and not (name in use.pointers and values):
            made.signature[name], made.constants[name] = "*i8", None
        else:
            read = parameter.annotation_type or _given_type(given.get(name))
            made.guessed |= set() if read else {name}
            made.signature[name] = kind = read or _type(name, use)
            if kind.startswith("*"):
                made.divisible.append(name)
            elif name in ones:
                made.ones.append(name)
                made.constants[name] = 1
    for name, function in values.items():
        for parameter in kernel.params:
            if parameter.name == name:
                made.guessed.add(name)
                _note(made, parameter, _asked(name, function, made))
    return made


def _is_constant(given: Known) -> bool:
    return not isinstance(given.value, Typed) or given.value.name == CONDITION


def _given_type(given: Known | None) -> str:
    """Return the type of an argument in the file's launches, or an empty string if the type is unknown or if launches
    differ."""
    if given is None or not given.sure:
        return ""
    if isinstance(given.value, Typed):
        return "" if given.value.name == CONDITION else f"*{given.value.name}"
    return {float: "fp32", int: "i32"}.get(type(given.value), "")


def _note(made: Guess, parameter: Parameter, value: object) -> None:
    if strangers_in(value):
        value = constexpr(parameter.name)
        made.guessed.add(parameter.name)
    if parameter.is_constexpr:
        made.constants[parameter.name] = value
    elif value is None:
        made.signature[parameter.name], made.constants[parameter.name] = "*i8", None


def _asked(name: str, function: Heuristic, made: Guess) -> object:
    arguments = {key: Stranger(key) if kind.startswith("*") else _WIDTH for key, kind in made.signature.items()}
    try:
        value = function({**arguments, **made.constants})
    except Exception:
        return constexpr(name)
    return value if isinstance(value, (bool, int, float, str)) and not isinstance(value, Stranger) else constexpr(name)


def constexpr(name: str) -> object:
    """Return a likely value for a constexpr parameter. The guess is based on the parameter's name."""
    if re.search(r"PRECISION", name, re.IGNORECASE):
        return "ieee"
    if _TYPE.search(name):
        import triton.language as tl

        return tl.float32
    if _FLAG.search(name):
        return False
    if _BLOCK.search(name):
        return _SMALL_BLOCK
    if _REAL.search(name):
        return 1.0
    if re.search(r"NUM|COUNT|^N[A-Z]$|^G$|GROUP|STAGES|STEPS|HEADS|^H[A-Z]?$", name):
        return _COUNT
    return _WIDTH


def _type(name: str, use: Use) -> str:
    if name not in use.pointers and not name.endswith("_ptr"):
        return "fp32" if _REAL.search(name) else "i32"
    if name in use.addresses:
        return "*i64"
    if name in use.integers or (_INTEGER_DATA.search(name) and name not in use.real):
        return "*i64" if _WIDE_DATA.search(name) else "*i32"
    return "*bf16" if name in use.real else "*fp32"


def _ones(names: list[str]) -> set[str]:
    """Return the stride parameters that are probably 1: the innermost stride of each tensor, because most tensors are
    contiguous."""
    of: dict[str, list[str]] = {}
    for name in names:
        kind, _, rest = name.partition("_")
        first, _, last = name.rpartition("_")
        if kind == "stride" and len(rest) > 1:
            # stride_am belongs to a, stride_out_n to out.
            of.setdefault(f"stride_{rest.rpartition('_')[0] or rest[:-1]}", []).append(name)
        elif last == "stride" and "_" in first:
            # dense_batch_stride belongs to dense.
            of.setdefault(f"{first.rpartition('_')[0]}_", []).append(name)
    return {own[-1] for tensor, own in of.items() if sum(each.startswith(tensor) for each in names) > 1}


def rests_on(made: Guess, overflows: Callable[[Guess], bool]) -> dict[str, object]:
    """Return the guesses that an overflow depends on, as a mapping from parameters to guesses, or an empty mapping if
    the overflow depends on no guess.

    Args:
        made: the arguments of the launch that overflows.
        overflows: a function that returns whether the kernel also overflows with other arguments.
    """
    sizes = {name: value for name, value in made.constants.items() if name in made.guessed and value is not None}
    sizes = {name: value for name, value in sizes.items() if name not in made.ones}
    if sizes:
        return sizes
    for change in ({"*fp32": "*bf16"}, {"*bf16": "*fp32"}):
        types = {n: kind for n, kind in made.signature.items() if n in made.guessed and kind in change}
        near = replace(made, signature={**made.signature, **{name: change[kind] for name, kind in types.items()}})
        if types and not overflows(near):
            return dict(types)
    strides = [n for n, kind in made.signature.items() if n in made.guessed and "stride" in n and n not in made.ones]
    ones = {**made.constants, **dict.fromkeys(strides, 1)}
    if strides and not overflows(replace(made, constants=ones, ones=[*made.ones, *strides])):
        return {name: made.signature[name] for name in strides}
    return {}


def variants(made: Guess, use: Use) -> Iterator[Guess]:
    """Yield a guess, and then variants of the guess to try if the front end rejects the guess.

    The variants pass a pointer where the guess passes None, invert flags, and widen or narrow floating-point and
    integer types.
    """
    yield made
    tried = 0
    for pointers in (False, True):
        for flag in (None, True, False):
            for change in _CHANGES:
                near = _changed(made, use, pointers, flag, change)
                if (near.signature, near.constants) != (made.signature, made.constants) and tried < _MOST_VARIANTS:
                    tried += 1
                    yield near


_CHANGES: Sequence[Mapping[str, str]] = (
    {},
    {"*fp32": "*bf16"},
    {"*bf16": "*fp32"},
    {"*i32": "*i64"},
    {"*i64": "*i32"},
    {"i32": "i64"},
    {"*fp32": "*i32"},
)


def _changed(made: Guess, use: Use, pointers: bool, flag: bool | None, change: Mapping[str, str]) -> Guess:
    signature, constants, divisible = dict(made.signature), dict(made.constants), list(made.divisible)
    for name, value in made.constants.items():
        if pointers and value is None and name in use.pointers:
            signature[name] = _type(name, use)
            del constants[name]
            divisible.append(name)
        elif flag is not None and isinstance(value, bool) and name in made.guessed:
            constants[name] = flag
    signature = {name: change.get(kind, kind) if name not in constants else kind for name, kind in signature.items()}
    return Guess(signature, constants, divisible, made.ones, made.guessed)
