"""What upstream's own code refuses of a configuration, evaluated from its source and never executed.

Statements are followed as far as they depend on the configuration alone, into upstream's functions, methods and
classes. An expression that needs anything else is unknown, and so is each condition that it stands in: nothing is said
of what is unknown, and what a statement that cannot be followed may have changed is unknown from there on.
"""

from __future__ import annotations

import ast
import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    ast.Is: lambda one, other: _same(one, other),
    ast.IsNot: lambda one, other: not _same(one, other),
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
_TYPES: Mapping[str, type] = {each.__name__: each for each in (bool, int, float, str, dict, list)}
_SECTION_TO_OBJECT = "omega_conf_to_dataclass"
"""Upstream's helper that has Hydra make an object of a section, of the class that its `_target_` names."""
_DEEPEST = 8
"""Calls within each other that are followed."""


class _Unknown(Exception):
    """What the configuration alone does not tell."""


_NOT_TOLD = object()
"""In place of a value that is unknown."""


@dataclass(frozen=True, slots=True)
class _Section:
    """A part of the configuration, by its full key."""

    values: dict[str, object]
    key: str = ""

    def full(self, name: str) -> str:
        return f"{self.key}.{name}" if self.key else name

    def __contains__(self, name: str) -> bool:
        key = self.full(name)
        return key in self.values or any(other.startswith(f"{key}.") for other in self.values)

    def get(self, name: str) -> object:
        key = self.full(name)
        # A section may be listed as well, with no value of its own.
        if any(other.startswith(f"{key}.") for other in self.values):
            return _Section(self.values, key)
        value = self.values.get(key, _NOT_TOLD)
        # An interpolation that only the running job can follow, or a value that is yet to be given.
        return _NOT_TOLD if isinstance(value, str) and ("${" in value or value == "???") else value


@dataclass(frozen=True, slots=True)
class _Class:
    """A class of upstream's."""

    target: Target


@dataclass(frozen=True, slots=True)
class _Object:
    """An object of a class of upstream's."""

    of: Target
    attributes: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Returned:
    value: object


Names = dict[str, object]


def _same(one: object, other: object) -> bool:
    return one is other or (isinstance(one, _Class) and one == other)


def refused(trainer: Target, settings: Settings, tree: SourceTree) -> Iterator[str]:
    """Yield what a class says of a configuration that it refuses, as an object of it is made of that alone."""
    said: list[str] = []
    with contextlib.suppress(_Unknown):
        _Reading(trainer.module, tree, said).made(trainer, [_Section(dict(settings.values))], {})
    yield from dict.fromkeys(said)


@dataclass(frozen=True, slots=True)
class _Reading:
    """A function's body, in its module, and in its class if it is a method."""

    module: str
    tree: SourceTree
    said: list[str]
    within: Target | None = None
    depth: int = 0

    def run(self, statements: Sequence[ast.stmt], names: Names) -> _Returned | None:
        """Follow statements; return what they return, if they do."""
        for node in statements:
            match node:
                case ast.Return(value=value):
                    return _Returned(self._or_not_told(value, names) if value is not None else None)
                case ast.Raise(exc=error):
                    # What follows is judged as if the condition did not hold: all is said at once.
                    self.said.append(self._said_of(error, names))
                    return None
                case (
                    ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value)
                ):
                    found = self._or_not_told(value, names)
                    if found is _NOT_TOLD:
                        self._forget(value, names)
                    self._bind(target, found, names)
                case ast.Assert(test=test, msg=message):
                    if self._holds(test, names) is False:
                        self.said.append(self._text(message, names) or ast.unparse(test))
                case ast.If(test=test) if (holds := self._holds(test, names)) is not None:
                    ended = self.run(node.body if holds else node.orelse, names)
                    if ended is not None:
                        return ended
                case ast.Pass() | ast.Expr(value=ast.Constant()):
                    pass
                case ast.Expr(value=ast.Call() as call) if self._or_not_told(call, names) is not _NOT_TOLD:
                    pass
                case _:
                    if self._forget(node, names):
                        return _Returned(_NOT_TOLD)
        return None

    def _forget(self, node: ast.AST, names: Names) -> bool:
        """Make unknown what a statement may change that is not followed; return whether it may also return."""
        inside = list(ast.walk(node))
        called = {id(part) for each in inside if isinstance(each, ast.Call) for part in ast.walk(each.func)}
        read = {
            id(each.value) for each in inside if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load)
        }
        for each in inside:
            match each:
                case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                    self._bind(each, _NOT_TOLD, names)
                case ast.Name(id=name, ctx=ast.Load()) if isinstance(names.get(name), _Object | dict):
                    if id(each) in called or id(each) not in read:
                        self._change(name, names)
                case (
                    ast.Name(id=name, ctx=ast.Store() | ast.Del())
                    | ast.FunctionDef(name=name)
                    | ast.ClassDef(name=name)
                    | ast.alias(asname=str(name))
                    | ast.alias(name=name)
                ):
                    names[name.partition(".")[0]] = _NOT_TOLD
        return any(isinstance(each, ast.Return) for each in inside)

    def _change(self, name: str, names: Names) -> None:
        """Make unknown what an object or a dictionary holds."""
        known = names.get(name)
        if isinstance(known, _Object):
            known.attributes.clear()
        elif isinstance(known, dict | _Section):
            names[name] = _NOT_TOLD

    def _bind(self, target: ast.expr, value: object, names: Names) -> None:
        match target:
            case ast.Name(id=name):
                names[name] = value
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self._bind(part, _NOT_TOLD, names)
            case ast.Attribute(value=of, attr=name):
                owner = self._or_not_told(of, names)
                if isinstance(owner, _Object):
                    owner.attributes[name] = value
                elif isinstance(owner, _Section):
                    owner.values[owner.full(name)] = value
            case _:
                for each in ast.walk(target):
                    if isinstance(each, ast.Name):
                        self._change(each.id, names)

    def _or_not_told(self, node: ast.expr, names: Names) -> object:
        try:
            return self._value(node, names)
        except (_Unknown, TypeError, ValueError, ArithmeticError, LookupError):
            return _NOT_TOLD

    def _holds(self, test: ast.expr, names: Names) -> bool | None:
        found = self._or_not_told(test, names)
        return None if found is _NOT_TOLD else bool(found)

    def _text(self, message: ast.expr | None, names: Names) -> str:
        found = self._or_not_told(message, names) if message is not None else _NOT_TOLD
        return "" if found is _NOT_TOLD else str(found)

    def _said_of(self, error: ast.expr | None, names: Names) -> str:
        message = error.args[0] if isinstance(error, ast.Call) and error.args else None
        return self._text(message, names) or ast.unparse(error or ast.Raise())

    def _value(self, node: ast.expr, names: Names) -> Any:
        value = self._found(node, names)
        if value is _NOT_TOLD:
            raise _Unknown
        return value

    def _found(self, node: ast.expr, names: Names) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return names[name] if name in names else _Class(self._class(self.module, name))
            case ast.Attribute(value=owner, attr=name):
                return self._attribute(self._value(owner, names), name)
            case ast.BoolOp(op=op, values=values):
                return self._either(isinstance(op, ast.Or), values, names)
            case ast.IfExp(test=test, body=body, orelse=other):
                return self._value(body if self._value(test, names) else other, names)
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
            case ast.Dict(keys=[], values=[]):
                return {}
            case ast.JoinedStr(values=parts):
                return "".join(self._shown(part, names) for part in parts)
            case ast.Call():
                return self._called(node, names)
        raise _Unknown

    def _shown(self, part: ast.expr, names: Names) -> str:
        if not isinstance(part, ast.FormattedValue):
            return str(self._value(part, names))
        value = self._value(part.value, names)
        return repr(value) if part.conversion == ord("r") else str(value)

    def _attribute(self, owner: object, name: str) -> object:
        if isinstance(owner, _Section):
            return owner.get(name)
        if isinstance(owner, _Object) and name in owner.attributes:
            return owner.attributes[name]
        raise _Unknown

    def _either(self, any_of: bool, values: Sequence[ast.expr], names: Names) -> Any:
        value: Any = None
        for each in values:
            value = self._value(each, names)
            if bool(value) is any_of:
                break
        return value

    def _called(self, call: ast.Call, names: Names) -> object:
        args = [self._or_not_told(each, names) for each in call.args]
        given: dict[str, object] = {}
        for each in call.keywords:
            value = self._or_not_told(each.value, names)
            if each.arg is not None:
                given[each.arg] = value
            elif isinstance(value, dict):
                given |= value
            else:
                raise _Unknown
        match call.func:
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name) if self.within is not None:
                owner = names.get("self")
                if isinstance(owner, _Object):
                    bases = self._bases(self.within)
                    return self._method(bases, name, owner, args, given)
            case ast.Attribute(value=of, attr=name):
                owner = self._value(of, names)
                if name == "get" and isinstance(owner, _Section | dict) and not given:
                    return self._looked_up(owner, *args)
                if name == "update" and isinstance(owner, dict) and not args:
                    return owner.update(given)
                if isinstance(owner, _Object):
                    return self._method(self._line(owner.of), name, owner, args, given)
            case ast.Name(id="isinstance"):
                kinds = call.args[1].elts if isinstance(call.args[1], ast.Tuple) else [call.args[1]]
                types = tuple(_TYPES[each.id] for each in kinds if isinstance(each, ast.Name) and each.id in _TYPES)
                if args[0] is not _NOT_TOLD and not isinstance(args[0], _Section) and len(types) == len(kinds):
                    return isinstance(args[0], types)
            case ast.Name(id="dict") if not args:
                return given
            case ast.Name(id="bool" | "int" | "str" as name) if len(args) == 1 and args[0] is not _NOT_TOLD:
                return _TYPES[name](args[0])
            case ast.Name(id=name) if name == _SECTION_TO_OBJECT and len(args) == 1 and isinstance(args[0], _Section):
                return self._of_section(args[0])
            case ast.Name(id=name):
                value = names.get(name)
                if isinstance(value, _Class):
                    return self.made(value.target, args, given)
                return self._function(name, args, given) if value is None else _NOT_TOLD
        raise _Unknown

    def _looked_up(self, owner: _Section | dict[str, object], name: object, default: object = None) -> object:
        if not isinstance(name, str):
            raise _Unknown
        return owner.get(name) if name in owner else default

    def _of_section(self, section: _Section) -> object:
        """The object that Hydra makes of a section, by the class that it names."""
        module, _unused, name = str(section.get("_target_")).rpartition(".")
        keys = (key.removeprefix(f"{section.key}.") for key in section.values)
        given = {key: section.get(key) for key in keys if key.isidentifier()}
        # A package may have it of one of its modules by `from … import *`.
        for place in (module, *self.tree.modules_below(module)):
            with contextlib.suppress(_Unknown):
                return self.made(self._class(place, name), [], given)
        raise _Unknown

    def _function(self, name: str, args: Sequence[object], given: Mapping[str, object]) -> object:
        for place in self.tree.chain(Target(self.module, name)):
            for node in self.tree.nodes(place):
                if isinstance(node, ast.FunctionDef) and not node.decorator_list:
                    return self._within(place.module, None).body(node, args, given)
                if isinstance(node, ast.ClassDef):
                    return self.made(place, args, given)
        raise _Unknown

    def _method(
        self, line: Sequence[Target], name: str, owner: _Object, args: Sequence[object], given: Mapping[str, object]
    ) -> object:
        for each in line:
            match self.tree.nodes(Target(each.module, f"{each.qualname}.{name}")):
                case [ast.FunctionDef(decorator_list=[]) as node]:
                    return self._within(each.module, each).body(node, [owner, *args], given)
                case [_, *_rest]:
                    break
        owner.attributes.clear()
        raise _Unknown

    def _within(self, module: str, within: Target | None) -> _Reading:
        if self.depth > _DEEPEST:
            raise _Unknown
        return _Reading(module, self.tree, self.said, within, self.depth + 1)

    def body(self, node: ast.FunctionDef, args: Sequence[object], given: Mapping[str, object]) -> object:
        """Follow a function with its arguments; return what it returns."""
        taken = node.args
        names: Names = {}
        defaults = [*taken.defaults, *(each or ast.Name("None") for each in taken.kw_defaults)]
        parameters = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs]
        for parameter, default in zip(reversed(parameters), reversed(defaults), strict=False):
            names[parameter.arg] = default.value if isinstance(default, ast.Constant) else _NOT_TOLD
        names |= dict(zip((each.arg for each in parameters), args, strict=False)) | dict(given)
        for parameter in (*parameters, *(each for each in (taken.vararg, taken.kwarg) if each is not None)):
            names.setdefault(parameter.arg, _NOT_TOLD)
        ended = self.run(node.body, names)
        return None if ended is None else ended.value

    def made(self, target: Target, args: Sequence[object], given: Mapping[str, object]) -> _Object:
        """Return an object of a class, once its `__init__`, or a dataclass's `__post_init__`, was followed."""
        made, line = _Object(target), self._line(target)
        if any(self.tree.nodes(Target(each.module, f"{each.qualname}.__init__")) for each in line):
            self._method(line, "__init__", made, args, given)
            return made
        for each in reversed(line):
            for node in self.tree.nodes(each):
                for field_ in node.body if isinstance(node, ast.ClassDef) else ():
                    if isinstance(field_, ast.AnnAssign) and isinstance(field_.target, ast.Name):
                        default = field_.value
                        known = default.value if isinstance(default, ast.Constant) else _NOT_TOLD
                        made.attributes[field_.target.id] = known
        made.attributes.update(given)
        if any(self.tree.nodes(Target(each.module, f"{each.qualname}.__post_init__")) for each in line):
            self._method(line, "__post_init__", made, [], {})
        return made

    def _line(self, target: Target) -> list[Target]:
        """A class, and those that it inherits from, as far as their source is here."""
        return [target, *self._bases(target)]

    def _bases(self, target: Target) -> list[Target]:
        found: list[Target] = []
        for node in self.tree.nodes(target):
            for base in node.bases if isinstance(node, ast.ClassDef) else ():
                if isinstance(base, ast.Name):
                    try:
                        found += self._line(self._class(target.module, base.id))
                    except _Unknown:
                        continue
        return found

    def _class(self, module: str, name: str) -> Target:
        for place in self.tree.chain(Target(module, name)):
            if any(isinstance(node, ast.ClassDef) for node in self.tree.nodes(place)):
                return place
        raise _Unknown
