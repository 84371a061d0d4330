"""Reads constants, options, and casts from the functions that launch a kernel, without running them.

Statements are followed in order. If the value of a condition is unknown, the first branch is followed, and the values
that this branch sets are marked as unsure.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Known:
    """The known facts about an expression: its value if the value is constant, otherwise its type."""

    value: object
    sure: bool = True
    """Whether every launch has this value. It is False if another branch sets another value."""


@dataclass(frozen=True)
class Typed:
    """The type of an unknown value. For a dtype or a tensor, `name` is the dtype's name in Triton, such as fp32. For a
    condition, `name` is `CONDITION`."""

    name: str


Scope: TypeAlias = dict[str, Known]
CONDITION = "condition"
"""The type of a value that is true or false."""


@dataclass(frozen=True)
class Launch:
    """A kernel launch in the same file as the kernel."""

    given: Mapping[str, Known]
    """What is known about each parameter, by name."""
    options: Mapping[str, int | bool]
    """Compiler options, such as num_warps and multibuffer."""


def launches(
    tree: ast.Module, kernels: Mapping[str, list[str]], globals_: Mapping[str, object]
) -> dict[str, list[Launch]]:
    """Return the kernel launches in a file, grouped by kernel. A launch has the form `name[grid](…)`.

    Args:
        tree: the file's syntax tree.
        kernels: the parameters of each kernel.
        globals_: the values of the file's global names.
    """
    reader = _Reader(kernels)
    plain = {k: Known(v) for k, v in globals_.items() if isinstance(v, (bool, int, float, str))}
    reader.follow(list(_defined(tree.body)), plain)
    return reader.found


def _defined(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node
        else:
            for part in ("body", "orelse"):
                yield from _defined(getattr(node, part, []))


@dataclass
class _Reader:
    kernels: Mapping[str, list[str]]
    found: dict[str, list[Launch]] = field(default_factory=dict)

    def follow(self, body: Sequence[ast.stmt], scope: Scope) -> bool:
        """Interpret the statements of a body without running them. Return whether the body ends with a `return` or a
        `raise`."""
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                inner = {**scope, **_defaults(node, scope)} if isinstance(node, ast.FunctionDef) else dict(scope)
                self.follow(node.body, inner)
            elif isinstance(node, ast.If):
                self._seen(node.test, scope)
                if self._branch(node, scope):
                    return True
            elif isinstance(node, (ast.For, ast.While)):
                self._maybe(node.body, scope)
            elif isinstance(node, (ast.With, ast.Try)):
                if self.follow([*node.body, *getattr(node, "finalbody", [])], scope):
                    return True
            else:
                self._seen(node, scope)
                _bind(node, scope)
                if isinstance(node, (ast.Return, ast.Raise)):
                    return True
        return False

    def _branch(self, node: ast.If, scope: Scope) -> bool:
        test = value_of(node.test, scope)
        first, second = (node.orelse, node.body) if test is not None and not test.value else (node.body, node.orelse)
        other = dict(scope)
        if test is not None and test.sure:
            # Launches in the other branch count too.
            self.follow(second, other)
            return self.follow(first, scope)
        ends, ends_otherwise = self._maybe(first, scope), self.follow(second, other)
        if ends and not ends_otherwise:
            _replace(scope, other)
        _doubt(scope, other)
        return ends and ends_otherwise

    def _maybe(self, body: Sequence[ast.stmt], scope: Scope) -> bool:
        """Interpret statements that may or may not run. If the statements end with a `return` or a `raise`, discard
        the values that they set."""
        inner = dict(scope)
        ends = self.follow(body, inner)
        if not ends:
            _doubt(inner, scope)
            _replace(scope, inner)
        return ends

    def _seen(self, node: ast.AST, scope: Scope) -> None:
        for call in ast.walk(node):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Subscript)):
                continue
            of = call.func.value
            name = of.id if isinstance(of, ast.Name) else getattr(of, "attr", "")
            if name in self.kernels:
                self.found.setdefault(name, []).append(_launch(call, self.kernels[name], scope))


def _replace(scope: Scope, other: Scope) -> None:
    scope.clear()
    scope.update(other)


def _doubt(scope: Scope, other: Scope) -> None:
    """Mark as unsure every value that the other branch sets differently or does not set."""
    scope.update({name: Known(each.value, False) for name, each in scope.items() if other.get(name) != each})


def _launch(call: ast.Call, parameters: Sequence[str], scope: Scope) -> Launch:
    plain = next((n for n, each in enumerate(call.args) if isinstance(each, ast.Starred)), len(call.args))
    given = dict(zip(parameters, call.args[:plain], strict=False))
    named = {each.arg: each.value for each in call.keywords if each.arg}
    values = {name: value_of(node, scope) for name, node in {**given, **named}.items()}
    found = {name: value for name, value in values.items() if value is not None}
    return Launch(
        {name: value for name, value in found.items() if name in parameters},
        {k: v.value for k, v in found.items() if k not in parameters and v.sure and isinstance(v.value, (bool, int))},
    )


def _defaults(node: ast.FunctionDef, scope: Scope) -> Scope:
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    pairs = list(zip(names[len(names) - len(node.args.defaults) :], node.args.defaults, strict=True))
    pairs += [(k.arg, d) for k, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d is not None]
    found = {name: value_of(default, scope) for name, default in pairs}
    return {name: Known(value.value, False) for name, value in found.items() if value is not None}


def _bind(node: ast.stmt, scope: Scope) -> None:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            _set(target, node.value, scope)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        _set(node.target, node.value, scope)
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        _set(node.target, ast.BinOp(ast.Name(node.target.id, ast.Load()), node.op, node.value), scope)


def _set(target: ast.expr, value: ast.expr, scope: Scope) -> None:
    if isinstance(target, ast.Name):
        found = value_of(value, scope)
        scope.pop(target.id, None)
        if found is not None:
            scope[target.id] = found
    elif isinstance(target, (ast.Tuple, ast.List)):
        same = isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts)
        parts = value.elts if same and isinstance(value, ast.Tuple) else [ast.Name("", ast.Load())] * len(target.elts)
        for each, part in zip(target.elts, parts, strict=True):
            _set(each, part, scope)


_BINARY: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], object]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_DTYPES = {
    "float32": "fp32", "float": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float64": "fp64",
    "int8": "i8", "int16": "i16", "int32": "i32", "int": "i32", "int64": "i64", "long": "i64", "uint8": "u8",
    "bool": "i1",
}  # fmt: skip
_SAME = {
    "contiguous", "view", "reshape", "transpose", "permute", "squeeze", "unsqueeze", "flatten", "clone", "detach",
    "expand", "empty_like", "zeros_like", "ones_like", "full_like", "rand_like",
}  # fmt: skip
_COMPUTED: Mapping[str, Callable[..., int]] = {
    "cdiv": lambda a, b: -(-a // b),
    "next_power_of_2": lambda n: 1 << max(n - 1, 0).bit_length(),
    "max": max,
    "min": min,
}


def value_of(node: ast.expr, scope: Mapping[str, Known]) -> Known | None:
    """Return the value or the type of an expression, as far as it is known, or None if nothing is known."""
    if isinstance(node, ast.Constant) and not isinstance(node.value, (bytes, complex)):
        return Known(node.value)
    if isinstance(node, ast.Name):
        return scope.get(node.id)
    if isinstance(node, ast.Attribute):
        if node.attr == "dtype":
            return _typed(value_of(node.value, scope))
        of_torch = isinstance(node.value, ast.Name) and node.value.id == "torch"
        return Known(Typed(_DTYPES[node.attr])) if of_torch and node.attr in _DTYPES else None
    if isinstance(node, ast.BinOp):
        return _binary(node, scope)
    if isinstance(node, ast.IfExp):
        test, body, other = (value_of(each, scope) for each in (node.test, node.body, node.orelse))
        if test is not None and not isinstance(test.value, Typed):
            found = body if test.value else other
            return Known(found.value, found.sure and test.sure) if found is not None else None
        found = body or other
        return Known(found.value, False) if found is not None else None
    if isinstance(node, ast.Call):
        return _called(node, scope)
    return _condition(node, scope)


def _binary(node: ast.BinOp, scope: Mapping[str, Known]) -> Known | None:
    left, right = value_of(node.left, scope), value_of(node.right, scope)
    if left is None or right is None or not isinstance(left.value, int) or not isinstance(right.value, int):
        return None
    compute = _BINARY.get(type(node.op))
    if compute is None or abs(right.value) > 1 << 20 or abs(left.value) > 1 << 40:
        return None
    if right.value == 0 and isinstance(node.op, (ast.FloorDiv, ast.Mod)):
        return None
    return Known(compute(left.value, right.value), left.sure and right.sure)


def _condition(node: ast.expr, scope: Mapping[str, Known]) -> Known | None:
    """Return the known facts about a unary operation or a comparison. If its value is unknown, only its type is
    returned."""
    unknown = Known(Typed(CONDITION), False)
    if isinstance(node, ast.UnaryOp):
        inner = value_of(node.operand, scope)
        if inner is None or isinstance(inner.value, Typed):
            return unknown if isinstance(node.op, ast.Not) else None
        if isinstance(node.op, ast.Not):
            return Known(not inner.value, inner.sure)
        minus = isinstance(node.op, ast.USub) and isinstance(inner.value, (int, float))
        return Known(-inner.value, inner.sure) if minus and isinstance(inner.value, (int, float)) else None
    if not isinstance(node, ast.Compare):
        return None
    left, right = value_of(node.left, scope), value_of(node.comparators[0], scope)
    compare = _COMPARED.get(type(node.ops[0]))
    if len(node.ops) > 1 or compare is None or left is None or right is None:
        return unknown
    tensor = any(isinstance(each.value, Typed) for each in (left, right))
    if tensor and not isinstance(node.ops[0], (ast.Is, ast.IsNot)):
        return unknown
    try:
        return Known(bool(compare(left.value, right.value)), left.sure and right.sure)
    except TypeError:
        return unknown


def _called(node: ast.Call, scope: Mapping[str, Known]) -> Known | None:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    values = [value_of(each, scope) for each in node.args]
    if name in _COMPUTED and values and not node.keywords:
        known = [each for each in values if each is not None and type(each.value) is int]
        numbers = [each.value for each in known if isinstance(each.value, int)]
        if len(known) == len(values):
            return Known(_COMPUTED[name](*numbers), all(each.sure for each in known))
        # The minimum of a number and an unknown value is at most that number.
        return Known(min(numbers), False) if name == "min" and numbers else None
    if name == "bool" and len(values) == 1:
        return Known(Typed(CONDITION), False)
    dtype = next((value_of(each.value, scope) for each in node.keywords if each.arg == "dtype"), None)
    if dtype is not None:
        return _typed(dtype)
    if not isinstance(node.func, ast.Attribute):
        return None
    if name == "to":
        return next(filter(None, map(_typed, values)), None)
    if name in _SAME:
        of = values[0] if name.endswith("_like") and values else value_of(node.func.value, scope)
        return _typed(of)
    return Known(Typed(_DTYPES[name])) if name in _DTYPES and not node.args else None


def _typed(found: Known | None) -> Known | None:
    return found if found is not None and isinstance(found.value, Typed) else None
