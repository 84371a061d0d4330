"""What upstream's own code refuses of a configuration, evaluated from its source and never executed.

Statements are followed as far as they depend on the configuration alone, into upstream's functions, methods and
classes. An expression that needs anything else is unknown, and so is each condition that it stands in: nothing is said
of what is unknown, and what a statement that cannot be followed may have changed is unknown from there on.
"""

from __future__ import annotations

import ast
import contextlib
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv,
}
_TYPES: Mapping[str, type] = {each.__name__: each for each in (bool, int, float, str, dict, list)}
_KNOWN = (str, bool, int, float, list, tuple, dict, type(None))
_BUILTINS: Mapping[str, tuple[tuple[type, ...], Callable[[Any], object]]] = {
    "bool": (_KNOWN, bool),
    "int": (_KNOWN, int),
    "str": (_KNOWN, str),
    "list": ((list, tuple, dict), list),
    "len": ((str, list, tuple, dict), len),
}
"""Python's functions of one argument, with the types of which they are computed."""
_OF_TEXTS = frozenset({"endswith", "lower", "startswith", "strip", "upper"})
_DTYPES = frozenset({"bfloat16", "float16", "float32", "float64", "half"})
_CHANGES = rb"\b%s\.(?:add|append|clear|extend|insert|pop|remove|setdefault|update)\("
_SECTION_TO_OBJECT = "omega_conf_to_dataclass"
"""Upstream's helper that has Hydra make an object of a section, of the class that its `_target_` names."""
_DEEPEST = 8
"""Calls within each other that are followed."""


class _Unknown(Exception):
    """What the configuration alone does not tell."""


UNTOLD = object()
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
        value = self.values.get(key, UNTOLD)
        # A section may be listed as well, with no value of its own.
        if (value is UNTOLD or value == {}) and any(other.startswith(f"{key}.") for other in self.values):
            return _Section(self.values, key)
        # An interpolation that only the running job can follow, or a value that is yet to be given.
        return UNTOLD if isinstance(value, str) and ("${" in value or value == "???") else value


class _Registry(dict[object, object]):
    """A dictionary of upstream's. The names that other modules register in it are read when one is looked up."""

    def __init__(self, own: Mapping[object, object], registered: Iterator[object]) -> None:
        super().__init__(own)
        self._registered: Iterator[object] | None = registered

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name):
            return True
        if self._registered is None:
            raise _Unknown
        registered, self._registered = self._registered, None
        for each in registered:
            self[each] = UNTOLD
            if each == name:
                break
        self._registered = registered
        return super().__contains__(name)


@dataclass(frozen=True, slots=True)
class _Class:
    """A class of upstream's."""

    target: Target


@dataclass(frozen=True, slots=True)
class _Dtype:
    """A data type of torch's, which no value of a configuration is."""

    name: str


@dataclass(frozen=True, slots=True)
class _Function:
    """A function of upstream's, with the names that it sees if it was defined within another."""

    module: str
    node: ast.FunctionDef
    names: dict[str, object]


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


def section(settings: Settings, key: str = "") -> object:
    """Return a section of a configuration, or all of it, as an argument of what is followed."""
    return _Section(dict(settings.values), key)


def instance(of: Target, attributes: Mapping[str, object]) -> object:
    """Return an object of a class of upstream's, of which nothing but these attributes is known."""
    return _Object(of, dict(attributes))


def refused(
    target: Target, args: Sequence[object], tree: SourceTree, known: Mapping[str, object] | None = None
) -> Iterator[str]:
    """Yield the messages with which a function, or a class as an object of it is made, refuses its arguments.

    Args:
        known: the values of calls that depend on the job's size, by the text of the call.
    """
    said: list[str] = []
    with contextlib.suppress(_Unknown):
        _Reading(target.module, tree, said, known or {}).asked(target, args)
    yield from dict.fromkeys(said)


def returned(target: Target, args: Sequence[object], tree: SourceTree) -> object:
    """Return the value that a function returns, or None if the source does not tell it."""
    with contextlib.suppress(_Unknown):
        found = _Reading(target.module, tree, [], {}).asked(target, args)
        return None if found is UNTOLD else found
    return None


def refused_sections(settings: Settings, keys: Sequence[str], tree: SourceTree) -> Iterator[tuple[str, str]]:
    """Yield a section's key and each message with which the class that it names in `_target_` refuses it."""
    for key in keys:
        said: list[str] = []
        with contextlib.suppress(_Unknown):
            _Reading("", tree, said, {}).of_section(_Section(dict(settings.values), key))
        yield from ((key, each) for each in dict.fromkeys(said))


def field_types(settings: Settings, key: str, tree: SourceTree) -> dict[str, str]:
    """Return the annotated types of the fields of the class that a section names in `_target_`."""
    with contextlib.suppress(_Unknown):
        return _Reading("", tree, [], {}).field_types(_Section(dict(settings.values), key))
    return {}


@dataclass(frozen=True, slots=True)
class _Reading:
    """A function's body, in its module, and in its class if it is a method."""

    module: str
    tree: SourceTree
    said: list[str]
    known: Mapping[str, object]
    within: Target | None = None
    depth: int = 0

    def asked(self, target: Target, args: Sequence[object]) -> object:
        """Follow a function, a method with its object, or the making of one; return what it returns."""
        if not target.owner:
            return self._call(self._global(target.name), args, {})
        match self.tree.nodes(target):
            case [ast.FunctionDef() as node]:
                return self._within(target.module, Target(target.module, target.owner)).body(node, args, {})
        raise _Unknown

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
                    if found is UNTOLD:
                        self._forget(value, names)
                    self._bind(target, found, names)
                case ast.AugAssign(target=target, op=op, value=value):
                    self._bind(target, self._or_not_told(ast.BinOp(target, op, value), names), names)
                case ast.FunctionDef(name=name, decorator_list=[]):
                    names[name] = _Function(self.module, node, names)
                case ast.ImportFrom(names=imported):
                    source = self.tree.imported_module(self.module, node)
                    for each in imported:
                        names[each.asname or each.name] = self._imported(source, each.name)
                case ast.Assert(test=test, msg=message):
                    if self._holds(test, names) is False:
                        self.said.append(self._text(message, names) or ast.unparse(test))
                case ast.If(test=test) if (holds := self._holds(test, names)) is not None:
                    ended = self.run(node.body if holds else node.orelse, names)
                    if ended is not None:
                        return ended
                case ast.Pass() | ast.Expr(value=ast.Constant()):
                    pass
                case ast.Expr(value=ast.Call() as call) if self._or_not_told(call, names) is not UNTOLD:
                    pass
                case _:
                    if self._forget(node, names):
                        return _Returned(UNTOLD)
        return None

    def _forget(self, node: ast.AST, names: Names) -> bool:
        """Make unknown what a statement may change that is not followed; return whether it may also return."""
        inside = list(ast.walk(node))
        calls = [each.func for each in inside if isinstance(each, ast.Call)]
        changing = [func for func in calls if not (isinstance(func, ast.Attribute) and func.attr == "get")]
        called = {id(part) for func in changing for part in ast.walk(func)}
        read = {
            id(each.value) for each in inside if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load)
        }
        for each in inside:
            match each:
                case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                    self._bind(each, UNTOLD, names)
                case ast.Name(id=name, ctx=ast.Load()) if isinstance(inner := names.get(name), _Function):
                    if inner.names is names:
                        names[name] = UNTOLD
                        self._forget(inner.node, names)
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
                    names[name.partition(".")[0]] = UNTOLD
        return any(isinstance(each, ast.Return) for each in inside)

    def _change(self, name: str, names: Names) -> None:
        """Make unknown what an object or a dictionary holds."""
        known = names.get(name)
        if isinstance(known, _Object):
            known.attributes.clear()
        elif isinstance(known, dict | _Section):
            names[name] = UNTOLD

    def _bind(self, target: ast.expr, value: object, names: Names) -> None:
        match target:
            case ast.Name(id=name):
                names[name] = value
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self._bind(part, UNTOLD, names)
            case ast.Attribute(value=of, attr=name):
                owner = self._or_not_told(of, names)
                if isinstance(owner, _Object):
                    owner.attributes[name] = value
                elif isinstance(owner, _Section):
                    owner.values[owner.full(name)] = value
            case ast.Subscript(value=of, slice=index) if isinstance(owner := self._or_not_told(of, names), dict) and (
                isinstance(key := self._or_not_told(index, names), str | int)
            ):
                owner[key] = value
            case _:
                for each in ast.walk(target):
                    if isinstance(each, ast.Name):
                        self._change(each.id, names)

    def _or_not_told(self, node: ast.expr, names: Names) -> object:
        try:
            return self._value(node, names)
        except ZeroDivisionError as error:
            self.said.append(f"ZeroDivisionError: {error}: {ast.unparse(node)}")
            return UNTOLD
        except (_Unknown, TypeError, ValueError, ArithmeticError, LookupError):
            return UNTOLD

    def _holds(self, test: ast.expr, names: Names) -> bool | None:
        found = self._or_not_told(test, names)
        return None if found is UNTOLD else bool(found)

    def _text(self, message: ast.expr | None, names: Names) -> str:
        found = self._or_not_told(message, names) if message is not None else UNTOLD
        return "" if found is UNTOLD else str(found)

    def _said_of(self, error: ast.expr | None, names: Names) -> str:
        message = error.args[0] if isinstance(error, ast.Call) and error.args else None
        return self._text(message, names) or ast.unparse(error or ast.Raise())

    def _value(self, node: ast.expr, names: Names) -> Any:
        value = self._found(node, names)
        if value is UNTOLD:
            raise _Unknown
        return value

    def _found(self, node: ast.expr, names: Names) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return names[name] if name in names else self._global(name)
            case ast.Attribute(value=ast.Name(id="torch"), attr=name) if name in _DTYPES and "torch" not in names:
                return _Dtype(name)
            case ast.Attribute(value=owner, attr=name):
                return self._attribute(self._value(owner, names), name)
            case ast.BoolOp(op=op, values=values):
                return self._either(isinstance(op, ast.Or), values, names)
            case ast.IfExp(test=test, body=body, orelse=other):
                return self._value(body if self._value(test, names) else other, names)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._value(operand, names)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._value(operand, names)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMPUTES:
                return _COMPUTES[type(op)](self._value(left, names), self._value(right, names))
            case ast.Compare(left=left, ops=ops, comparators=others):
                values = [self._value(each, names) for each in (left, *others)]
                pairs = zip(ops, values, values[1:], strict=False)
                return all(_COMPARES[type(op)](one, other) for op, one, other in pairs)
            case ast.List(elts=parts) | ast.Set(elts=parts):
                return [self._value(part, names) for part in parts]
            case ast.Tuple(elts=parts):
                return tuple(self._value(part, names) for part in parts)
            case ast.Dict(keys=keys, values=contents) if None not in keys:
                named = zip((key for key in keys if key is not None), contents, strict=True)
                return {self._value(key, names): self._or_not_told(each, names) for key, each in named}
            case ast.Subscript(value=of, slice=ast.Slice(lower=lower, upper=upper, step=None)):
                ends = [None if each is None else self._value(each, names) for each in (lower, upper)]
                return self._value(of, names)[slice(*ends)]
            case ast.Subscript(value=of, slice=index):
                owner, key = self._value(of, names), self._value(index, names)
                return owner.get(key) if isinstance(owner, _Section) else owner[key]
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
        if isinstance(owner, _Class):
            for _unused, nodes in self._defined([owner.target], name):
                match nodes:
                    case [ast.Assign(value=ast.Constant(value=value))]:
                        return value
        raise _Unknown

    def _either(self, any_of: bool, values: Sequence[ast.expr], names: Names) -> Any:
        value: Any = None
        for each in values:
            value = self._value(each, names)
            if bool(value) is any_of:
                break
        return value

    def _called(self, call: ast.Call, names: Names) -> object:
        if self.known and (text := ast.unparse(call)) in self.known:
            return self.known[text]
        args = [self._or_not_told(each, names) for each in call.args]
        given = self._keywords(call, names)
        match call.func:
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name) if self.within is not None:
                if isinstance(owner := names.get("self"), _Object):
                    return self._method(self._bases(self.within), name, owner, args, given)
            case ast.Attribute(value=ast.Name(id="object"), attr="__setattr__") if isinstance(args[0], _Object):
                args[0].attributes[str(args[1])] = args[2]
                return None
            case ast.Attribute(value=of, attr=name):
                return self._of_owner(self._value(of, names), name, args, given)
            case ast.Name(id="getattr") if isinstance(args[0], _Object) and isinstance(args[1], str):
                return self._attribute(args[0], args[1])
            case ast.Name(id=name) if name == _SECTION_TO_OBJECT and len(args) == 1 and isinstance(args[0], _Section):
                return self.of_section(args[0])
            case ast.Name(id="isinstance"):
                return _is_instance(args[0], call.args[1])
            case ast.Name(id="dict") if not args:
                return given
            case ast.Name(id=name) if name in _BUILTINS and len(args) == 1 and isinstance(args[0], _BUILTINS[name][0]):
                return _BUILTINS[name][1](args[0])
            case ast.Name(id=name):
                return self._call(names[name] if name in names else self._global(name), args, given)
        raise _Unknown

    def _keywords(self, call: ast.Call, names: Names) -> dict[str, object]:
        given: dict[str, object] = {}
        for each in call.keywords:
            value = self._or_not_told(each.value, names)
            if each.arg is not None:
                given[each.arg] = value
            elif isinstance(value, dict):
                given.update(value)
            else:
                raise _Unknown
        return given

    def _of_owner(self, owner: Any, name: str, args: Sequence[Any], given: Mapping[str, object]) -> object:
        """Follow a method of a class or of an object, or compute one of Python's."""
        match owner:
            case _Class(target=target):
                return self._method(self._line(target), name, None, args, given)
            case _Object(of=of):
                return self._method(self._line(of), name, owner, args, given)
            case str() if name in _OF_TEXTS and not given and UNTOLD not in args:
                return getattr(owner, name)(*args)
            case _Section() | dict() if name == "get" and not given:
                return self._looked_up(owner, *args)
            case dict() if name == "keys":
                return list(owner)
            case dict() if name == "update" and not args:
                return owner.update(given)
        raise _Unknown

    def _call(self, called: object, args: Sequence[object], given: Mapping[str, object]) -> object:
        if isinstance(called, _Class):
            return self.made(called.target, args, given)
        if isinstance(called, _Function):
            return self._within(called.module, None).body(called.node, args, given, called.names)
        raise _Unknown

    def _looked_up(self, owner: _Section | dict[str, object], name: object, default: object = None) -> object:
        if not isinstance(name, str):
            raise _Unknown
        return owner.get(name) if name in owner else default

    def of_section(self, of: _Section) -> object:
        """Return the object that Hydra makes of a section, and of those in it, by the class that each names."""
        keys = (key.removeprefix(f"{of.key}.") for key in of.values)
        given = {key: self._in_section(of.get(key)) for key in keys if key.isidentifier()}
        return self.made(self._named(of), [], given)

    def _in_section(self, value: object) -> object:
        if isinstance(value, _Section) and "_target_" in value:
            try:
                return self.of_section(value)
            except _Unknown:
                return UNTOLD
        return value

    def _named(self, of: _Section) -> Target:
        """The class that a section names."""
        module, _unused, name = str(of.get("_target_")).rpartition(".")
        # A package may have it of one of its modules by `from … import *`.
        for place in (module, *self.tree.modules_below(module)) if module else ():
            with contextlib.suppress(_Unknown):
                return self._class(place, name)
        raise _Unknown

    def field_types(self, of: _Section) -> dict[str, str]:
        """Return the annotated types of the fields of the class that a section names."""
        found: dict[str, str] = {}
        for each in reversed(self._line(self._named(of))):
            found |= {name: ast.unparse(node.annotation) for name, node in self._fields(each)}
        return found

    def _fields(self, of: Target) -> Iterator[tuple[str, ast.AnnAssign]]:
        for node in self.tree.nodes(of):
            for each in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                    yield each.target.id, each

    def _imported(self, module: str, name: str) -> object:
        try:
            return replace(self, module=module)._global(name)
        except _Unknown:
            return UNTOLD

    def _global(self, name: str) -> object:
        """What a module's own name stands for: a class, a function, or a value that nothing changes."""
        for place in self.tree.chain(Target(self.module, name)):
            match self.tree.nodes(place):
                case [*nodes] if any(isinstance(node, ast.ClassDef) for node in nodes):
                    return _Class(place)
                case [ast.FunctionDef(decorator_list=[]) as node]:
                    return _Function(place.module, node, {})
                case [ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value)]:
                    return self._constant(place, value)
        raise _Unknown

    def _constant(self, place: Target, value: ast.expr) -> object:
        text = self.tree.read(place.module) or b""
        if re.search(_CHANGES % re.escape(place.name.encode()), text):
            raise _Unknown
        found = replace(self, module=place.module)._value(value, {})
        if isinstance(found, dict):
            return self.tree.recall(("registry", place), lambda: _Registry(found, self._registered(place)))
        return found

    def _registered(self, registry: Target) -> Iterator[object]:
        """The names under which a registry gets something anywhere in upstream's source, the nearest first.

        Raises:
            _Unknown: one of them is not told there.
        """
        parsed = self.tree.parse(registry.module)
        functions = [node for node in parsed.body if isinstance(node, ast.FunctionDef)] if parsed is not None else []
        stored = [each.name for each in functions if _stores(each, registry.name)]
        if not stored:
            return
        near = self.tree.modules_with((registry.module.rpartition(".")[0],), stored)
        far = self.tree.modules_with((registry.package,), stored)
        for module in dict.fromkeys((registry.module, *near)):
            yield from self._registers(module, stored, registry)
        for module in far:
            yield from self._registers(module, stored, registry)

    def _registers(self, module: str, stored: Sequence[str], registry: Target) -> Iterator[object]:
        tree, reading = self.tree.parse(module), replace(self, module=module)
        for node in ast.walk(tree) if tree is not None else ():
            match node:
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[first, *_]) if (
                    name in stored and self._is(module, name, registry.module)
                ):
                    yield reading._value(first, {})

    def _is(self, module: str, name: str, of: str) -> bool:
        """Whether a name in a module is another module's."""
        return any(place.module == of for place in self.tree.chain(Target(module, name))) or module == of

    def _defined(self, line: Sequence[Target], name: str) -> Iterator[tuple[Target, Sequence[ast.stmt]]]:
        """Yield those of these classes that define a name, and their definitions."""
        for each in line:
            if nodes := self.tree.nodes(Target(each.module, f"{each.qualname}.{name}")):
                yield each, nodes

    def _method(
        self,
        line: Sequence[Target],
        name: str,
        owner: _Object | None,
        args: Sequence[object],
        given: Mapping[str, object],
    ) -> object:
        """Follow a method: of an object, or of a class, which hands over the object itself if it needs one."""
        for each, nodes in self._defined(line, name):
            match nodes:
                case [ast.FunctionDef(decorator_list=[]) as node]:
                    own = [owner, *args] if owner is not None else args
                    return self._within(each.module, each).body(node, own, given)
                case [ast.FunctionDef(decorator_list=[ast.Name(id="staticmethod")]) as node]:
                    return self._within(each.module, each).body(node, args, given)
            break
        for given_one in (owner, *args):
            if isinstance(given_one, _Object):
                given_one.attributes.clear()
        raise _Unknown

    def _within(self, module: str, within: Target | None) -> _Reading:
        if self.depth > _DEEPEST:
            raise _Unknown
        return replace(self, module=module, within=within, depth=self.depth + 1)

    def body(
        self,
        node: ast.FunctionDef,
        args: Sequence[object],
        given: Mapping[str, object],
        around: Mapping[str, object] | None = None,
    ) -> object:
        """Follow a function with its arguments, and the names around it; return what it returns."""
        taken = node.args
        names: Names = dict(around or {})
        defaults = [*taken.defaults, *(each or ast.Name("None") for each in taken.kw_defaults)]
        parameters = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs]
        for parameter, default in zip(reversed(parameters), reversed(defaults), strict=False):
            names[parameter.arg] = default.value if isinstance(default, ast.Constant) else UNTOLD
        names |= dict(zip((each.arg for each in parameters), args, strict=False)) | dict(given)
        for parameter in parameters[len(args) :]:
            names.setdefault(parameter.arg, UNTOLD)
        names |= {each.arg: UNTOLD for each in (taken.vararg, taken.kwarg) if each is not None}
        ended = self.run(node.body, names)
        return None if ended is None else ended.value

    def made(self, target: Target, args: Sequence[object], given: Mapping[str, object]) -> _Object:
        """Return an object of a class, once its `__init__`, or a dataclass's `__post_init__`, was followed."""
        made, line = _Object(target), self._line(target)
        if any(self._defined(line, "__init__")):
            self._method(line, "__init__", made, args, given)
            return made
        for each in reversed(line):
            for name, node in self._fields(each):
                made.attributes[name] = node.value.value if isinstance(node.value, ast.Constant) else UNTOLD
        made.attributes.update(given)
        if any(self._defined(line, "__post_init__")):
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


def _is_instance(value: object, kinds: ast.expr) -> bool:
    each = kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]
    named = [kind.id if isinstance(kind, ast.Name) else "" for kind in each]
    if named == ["Enum"] and isinstance(value, str):
        return False
    if value is UNTOLD or isinstance(value, _Section) or not _TYPES.keys() >= {*named}:
        raise _Unknown
    return isinstance(value, tuple(_TYPES[name] for name in named))


def _stores(function: ast.FunctionDef, registry: str) -> bool:
    """Whether a function puts something into a module's dictionary."""
    return any(
        isinstance(each, ast.Subscript)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == registry
        for each in ast.walk(function)
    )
