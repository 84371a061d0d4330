"""What upstream's own code refuses of a configuration, evaluated from its source and never executed.

Statements are followed as far as they depend on the configuration alone. An expression that needs anything else is
unknown, and so is each condition that it stands in: nothing is said of what is unknown.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_npu.registry.source.tree import SourceTree, Target

from .settings import Settings

_COMPARES: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}
_COMPUTES: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv,
}


class _Unknown(Exception):
    """What the configuration alone does not tell."""


@dataclass(frozen=True, slots=True)
class _Section:
    """A part of the configuration, by its full key."""

    settings: Settings
    key: str = ""

    def get(self, name: str) -> object:
        key = f"{self.key}.{name}" if self.key else name
        # A section may be listed as well, with no value of its own.
        if any(other.startswith(f"{key}.") for other in self.settings.values):
            return _Section(self.settings, key)
        if key in self.settings:
            return self.settings.get(key)
        raise _Unknown


Names = Mapping[str, object]


def refused(function: Target, settings: Settings, tree: SourceTree, parameter: str = "config") -> Iterator[str]:
    """Yield what a function says of a configuration that it refuses, up to its first call of `super().__init__`."""
    for node in tree.nodes(function):
        if isinstance(node, ast.FunctionDef):
            yield from _Reading(function.module, tree).block(node.body, {parameter: _Section(settings)})


@dataclass(frozen=True, slots=True)
class _Reading:
    module: str
    tree: SourceTree

    def block(self, statements: Sequence[ast.stmt], known: Names) -> Iterator[str]:
        names = dict(known)
        for node in statements:
            match node:
                case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="super"))))):
                    return
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    names.pop(name, None)
                    if (found := self._told(value, names)) is not None:
                        names[name] = found[0]
                case ast.Assert(test=test, msg=message) if self._holds(test, names) is False:
                    yield self._said(message, names) or ast.unparse(test)
                case ast.If(test=test):
                    holds = self._holds(test, names)
                    if holds is not None:
                        yield from self.block(node.body if holds else node.orelse, names)
                case ast.Raise(exc=ast.Call(args=[message, *_])):
                    yield self._said(message, names)
                    return

    def _told(self, node: ast.expr, names: Names) -> tuple[object] | None:
        try:
            return (self._value(node, names),)
        except (_Unknown, TypeError, ZeroDivisionError):
            return None

    def _holds(self, test: ast.expr, names: Names) -> bool | None:
        found = self._told(test, names)
        return None if found is None else bool(found[0])

    def _said(self, message: ast.expr | None, names: Names) -> str:
        found = self._told(message, names) if message is not None else None
        return "" if found is None else str(found[0])

    def _value(self, node: ast.expr, names: Names) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name) if name in names:
                return names[name]
            case ast.Attribute(value=owner, attr=name) if isinstance(part := self._value(owner, names), _Section):
                return part.get(name)
            case ast.BoolOp(op=op, values=values):
                return self._either(isinstance(op, ast.Or), values, names)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._value(operand, names)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMPUTES:
                return _COMPUTES[type(op)](self._value(left, names), self._value(right, names))
            case ast.Compare(left=left, ops=ops, comparators=others):
                values = [self._value(each, names) for each in (left, *others)]
                pairs = zip(ops, values, values[1:], strict=False)
                return all(_COMPARES[type(op)](one, other) for op, one, other in pairs)
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                return [self._value(part, names) for part in parts]
            case ast.JoinedStr(values=parts):
                shown = [part.value if isinstance(part, ast.FormattedValue) else part for part in parts]
                return "".join(str(self._value(part, names)) for part in shown)
            case ast.Call(func=ast.Attribute(value=owner, attr="get"), args=[ast.Constant(value=str(name)), *rest]):
                return self._looked_up(self._value(owner, names), name, rest, names)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self._called(name, [self._value(each, names) for each in args])
        raise _Unknown

    def _either(self, any_of: bool, values: Sequence[ast.expr], names: Names) -> Any:
        value: Any = None
        for each in values:
            value = self._value(each, names)
            if bool(value) is any_of:
                break
        return value

    def _looked_up(self, owner: object, name: str, rest: Sequence[ast.expr], names: Names) -> Any:
        if not isinstance(owner, _Section):
            raise _Unknown
        try:
            return owner.get(name)
        except _Unknown:
            if not rest:
                return None
            return self._value(rest[0], names)

    def _called(self, name: str, given: Sequence[object]) -> Any:
        """What a function of upstream's returns that does nothing else."""
        for place in self.tree.chain(Target(self.module, name)):
            for node in self.tree.nodes(place):
                last = node.body[-1] if isinstance(node, ast.FunctionDef) and len(node.body) <= 2 else None
                if isinstance(node, ast.FunctionDef) and isinstance(last, ast.Return) and last.value is not None:
                    names = dict(zip((each.arg for each in node.args.args), given, strict=False))
                    return _Reading(place.module, self.tree)._value(last.value, names)
        raise _Unknown
