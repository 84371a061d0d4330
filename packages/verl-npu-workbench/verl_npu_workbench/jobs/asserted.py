"""An interpreter for upstream's source that finds the errors that upstream raises when it rejects a configuration.

It never executes upstream's code. It follows statements into upstream's functions, methods, and classes as long as
they depend only on the configuration. An expression that depends on anything else has an unknown value, and so does a
condition that contains it. Unknown values are never reported as errors. After a statement that cannot be followed,
everything that the statement may have changed is unknown.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import math
import operator
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from verl_npu.registry.source.tree import SourceTree, Target

from .changes import (
    HARMLESS,
    MUTATING,
    MUTATING_CALL,
    Effects,
    Use,
    changed_in,
    effects_of,
    leaving,
    local_names,
    stored_parts,
    stores,
)
from .installed import did_you_mean, has_member, is_file, member_of
from .settings import Settings
from .values import (
    ENDS,
    PLAIN,
    UNKNOWN,
    Class,
    Failed,
    Foreign,
    Function,
    Member,
    Module,
    Names,
    Object,
    Registry,
    Section,
    Unknown,
    computed,
    is_instance,
    is_partly_unknown,
    is_spoiled,
    refuse_text,
    same,
    section,
    spoil,
)

_COMPARES: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: same,
    ast.IsNot: lambda one, other: not same(one, other),
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
_BUILTINS: Mapping[str, Callable[..., object]] = {
    "enumerate": lambda values: [*enumerate(values)],
    **{each.__name__: each for each in (all, any, bool, int, float, str, list, len, sorted, range)},
}
"""Python's functions that the interpreter calls if all arguments have plain types."""
WORLD = "torch.distributed.get_world_size()"
_MOST_REPEATED = 64
"""The greatest number of times that a loop's body is followed."""
_LONGEST, _GREATEST = 1 << 20, 1 << 64
"""The greatest length of a string or list, and the greatest number, that is computed."""
_MOST_STATEMENTS = 30_000
"""The greatest number of statements that are followed for one question."""
_FOLLOWED = ("torch", "torchdata")
"""Installed packages whose classes refuse upstream's arguments."""
_UNREAD = frozenset({"tensordict", "transformers"})
"""Large packages whose code refuses no setting before it reads a file."""
_STRING_METHODS = frozenset({"endswith", "lower", "startswith", "strip", "upper"})
_DATA = (ast.Constant, ast.Dict, ast.List, ast.Tuple)
_DTYPES = frozenset({"bfloat16", "float16", "float32", "float64"})
_SECTION_TO_OBJECT = "omega_conf_to_dataclass"
"""Upstream's helper function through which Hydra turns a section into an object of the class in the section's
`_target_`."""
_MAX_DEPTH = 8
"""The greatest depth of nested calls. Deeper calls are not followed."""


class _Import(NamedTuple):
    """A name that a module imports, the name at its source, and the module that is the source."""

    name: str
    original: str
    source: str


@dataclass(frozen=True, slots=True)
class _Returned:
    value: object


_BREAK, _CONTINUE = _Returned("break"), _Returned("continue")
_MAYBE_RETURNED, _MAYBE_LEFT = _Returned(UNKNOWN), _Returned("break or continue")
"""The results of statements that may leave the function, or the loop around them, or do neither."""


def refused(
    target: Target,
    args: Sequence[object],
    tree: SourceTree,
    known: Mapping[str, object] | None = None,
    given: Mapping[str, object] | None = None,
) -> Iterator[str]:
    """Yield the error messages that a function raises when it rejects its arguments. For a class, yield the error
    messages that instantiating the class raises.

    Args:
        known: the return values of calls that depend on the job's size. The keys are the calls' source text.
        given: the arguments by keyword. Arguments that are not given are unknown, whatever their defaults are.
    """
    said: list[str] = []
    with contextlib.suppress(*ENDS):
        _Reading(target.module, tree, said, known or {}).asked(target, args, given or {})
    yield from dict.fromkeys(said)


def returned(target: Target, args: Sequence[object], tree: SourceTree) -> object:
    """Return the value that a function returns, or None if the value cannot be determined."""
    with contextlib.suppress(*ENDS):
        found = _Reading(target.module, tree, [], {}).asked(target, args, {})
        return None if found is UNKNOWN else found
    return None


def field_types(settings: Settings, key: str, tree: SourceTree) -> dict[str, str]:
    """Return the annotated types of the fields of the class in a section's `_target_`."""
    with contextlib.suppress(*ENDS):
        return _Reading("", tree, [], {}).field_types(section(settings, key))
    return {}


def made(settings: Settings, key: str, tree: SourceTree, said: list[str] | None = None) -> object:
    """Return the object that Hydra creates from a section, or UNKNOWN if the section's class cannot be interpreted.
    Error messages that the class raises are added to `said`."""
    with contextlib.suppress(*ENDS):
        return _Reading("", tree, [] if said is None else said, {}).make_section(section(settings, key))
    return UNKNOWN


@dataclass(frozen=True, slots=True)
class _Reading:
    """The interpreter inside one function of a module. For a method, `within` is its class."""

    module: str
    tree: SourceTree
    said: list[str]
    """The error messages found so far."""
    known: Mapping[str, object]
    within: Target | None = None
    depth: int = 0
    local: frozenset[str] = frozenset()
    """The names that only the function's own statements bind."""
    enters: bool = False
    """Whether the function's loops over unknown values run at least once, like the loops over a job's batches."""
    left: Iterator[int] = field(default_factory=lambda: iter(range(_MOST_STATEMENTS)))
    """The statements that may still be followed, in all functions together."""

    def asked(self, target: Target, args: Sequence[object], given: Mapping[str, object]) -> object:
        """Interpret the call of a function, a method, or a class, and return its result. For a method, the first of
        `args` is the object."""
        for place in self._places(target):
            match self.tree.nodes(place):
                case [ast.FunctionDef() | ast.AsyncFunctionDef() as node]:
                    owner = Target(place.module, place.owner) if place.owner else None
                    own = [Class(owner)] if owner is not None and _is_class_method(node) else []
                    reading = replace(self._within(place.module, owner), enters=True)
                    rest = [*node.args.args, *node.args.kwonlyargs][len(own) + len(args) :]
                    return reading.body(node, [*own, *args], {**{each.arg: UNKNOWN for each in rest}, **given})
                case _ if self._definitions(place):
                    return self._call(Class(place), args, given)
        raise Unknown

    def run(self, statements: Sequence[ast.stmt], names: Names) -> _Returned | None:
        """Interpret statements. Return the value of the `return` statement that is reached, or None if none is
        reached."""
        for place, node in enumerate(statements):
            if isinstance(node, ast.Raise):
                # Go on as if the condition did not hold, so that all errors are found at once.
                self.said.append(self._message_of(node.exc, names))
                return None
            ended = self._run_one(node, names)
            if ended is _MAYBE_RETURNED or ended is _MAYBE_LEFT:
                for rest in statements[place + 1 :]:
                    self._forget(rest, names)
            if ended is not None:
                return ended
        return None

    def _run_one(self, node: ast.stmt, names: Names) -> _Returned | None:
        if next(self.left, None) is None:
            raise RecursionError
        match node:
            case ast.Return(value=value):
                return _Returned(self._result(value, names) if value is not None else None)
            case ast.Break():
                return _BREAK
            case ast.Continue():
                return _CONTINUE
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                self._bind(target, self._result(value, names), names)
            case ast.AugAssign(target=target, op=op, value=value):
                spoil(self._value_or_unknown(target, names))
                self._bind(target, self._result(ast.BinOp(target, op, value), names), names)
            case ast.FunctionDef(name=name, decorator_list=[]) if not any(
                isinstance(each, ast.Nonlocal) for each in ast.walk(node)
            ):
                names[name] = Function(self.module, node, names)
            case ast.ImportFrom(names=imported):
                source = self.tree.imported_module(self.module, node)
                for each in imported:
                    names[each.asname or each.name] = self._imported(source, each.name)
            case ast.Assert(test=test, msg=message):
                holds = self._holds(test, names)
                if holds is None and not _only_asks(test):
                    self._forget(test, names)
                elif holds is False:
                    self.said.append(self._text(message, names) or ast.unparse(test))
            case ast.If(test=test) if (holds := self._holds(test, names)) is not None:
                return self.run(node.body if holds else node.orelse, names)
            case ast.For(target=target, iter=sequence, orelse=[]):
                values = self._value_or_unknown(sequence, names)
                if isinstance(values, list | tuple | range) and not values[_MOST_REPEATED:]:
                    return self._repeated(node, [(target, value) for value in values], names)
                return self._once(node, target, bool(values) if isinstance(values, range) else None, names)
            case ast.While(test=test, orelse=[]):
                return self._once(node, None, self._holds(test, names), names)
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body) if not any(
                re.search("suppress|raises|ignor|Error|Exception", ast.unparse(each.context_expr)) for each in items
            ):
                for item in items:
                    self._forget(item.context_expr, names)
                    if item.optional_vars is not None:
                        self._bind(item.optional_vars, UNKNOWN, names)
                return self.run(body, names)
            # Handlers that raise an error change only its message.
            case ast.Try(body=body, handlers=ends, orelse=then, finalbody=final) if all(
                isinstance(each.body[-1], ast.Raise) and not [*leaving(each)] for each in ends
            ):
                return self.run([*body, *then, *final], names)
            case ast.Try(body=[ast.Return(value=ast.expr() as value)]) if (
                found := replace(self, said=[])._value_or_unknown(value, names)
            ) is not UNKNOWN:
                return _Returned(found)
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                pass
            case ast.Expr(value=ast.Call() as call):
                self._result(call, names)
            case _:
                return self._forgotten(node, names)
        return None

    def _repeated(self, node: ast.For, turns: Sequence[tuple[ast.expr, object]], names: Names) -> _Returned | None:
        """Interpret a loop's body for each value of the loop's target."""
        for target, value in turns:
            self._bind(target, value, names)
            ended = self.run(node.body, names)
            if ended is _BREAK:
                break
            if ended is _MAYBE_LEFT:
                return self._forgotten(node, names)
            if ended is not None and ended is not _CONTINUE:
                return ended
        return None

    def _once(
        self, node: ast.For | ast.While, target: ast.expr | None, runs: bool | None, names: Names
    ) -> _Returned | None:
        """Interpret only the first iteration of a loop, if the loop's body is certain to run."""
        if runs is False:
            return None
        if runs or self.enters:
            if target is not None:
                self._bind(target, UNKNOWN, names)
            self.run(node.body, names)
        return self._forgotten(node, names)

    def _forgotten(self, node: ast.stmt, names: Names) -> _Returned | None:
        """Mark as unknown everything that a statement may change. Return a result that shows whether the statement may
        leave the function or the loop that contains the statement."""
        self._forget(node, names)
        leaves = self._effects(node).leaves
        if ast.Return in leaves:
            return _MAYBE_RETURNED
        return _MAYBE_LEFT if leaves else None

    def _forget(self, node: ast.AST, names: Names) -> None:
        """Mark as unknown everything that a statement may change: what it changes with a method, what it passes on to
        other code, and what it binds."""
        # What is read here may never run.
        self = replace(self, said=[])
        effects = self._effects(node)
        for of in effects.mutated:
            changed = self._value_or_unknown(of, names)
            spoil(changed)
            if isinstance(changed, Section):
                changed.values[changed.key] = UNKNOWN
            self._bind(of, UNKNOWN, names)
        for of in effects.called:
            match self._value_or_unknown(of, names):
                case Object() as known:
                    self._forget_state(known, effects.attributes)
                case dict() | list() as contents if not isinstance(contents, Registry):
                    spoil(contents)
        for name, use in effects.used:
            match names.get(name):
                case Function(node=inner, names=around) if around is names:
                    names[name] = UNKNOWN
                    self._forget(inner, names)
                case Object() as known if use is not Use.PASSED:
                    self._forget_state(known, effects.attributes, use is Use.CALLED)
                case Object() | dict() | list() if use is not Use.READ:
                    self._change(name, names)
        for each in effects.bound:
            match each:
                case str():
                    names[each] = UNKNOWN
                    continue
                case ast.Subscript(value=of):
                    spoil(self._value_or_unknown(of, names))
            self._bind(each, UNKNOWN, names)

    def _effects(self, node: ast.AST) -> Effects:
        return self.tree.recall(("effects", node), lambda: effects_of(node))

    def _change(self, name: str, names: Names) -> None:
        """Mark the contents of an object or a dictionary as unknown."""
        known = names.get(name)
        spoil(known)
        if isinstance(known, Object):
            known.attributes.clear()
        elif isinstance(known, Section):
            names[name] = UNKNOWN

    def _forget_state(self, changed: Object, methods: frozenset[str], called: bool = True) -> None:
        """Mark as unknown the attributes of an object, or the parts of them, that some of its methods may have
        changed. If `called` is False, only properties and methods that are passed on may have changed them."""
        texts = self._changes(changed.of, methods, called)
        if texts is None:
            changed.attributes.clear()
            return
        for name, value in [*changed.attributes.items()]:
            found = (re.match(rf"self\.{name}\b(?:\.([\w.]+)$)?", each) for each in texts)
            for part in (each[1] or "" for each in found if each):
                if part and isinstance(value, Section):
                    value.values[value.full(part)] = UNKNOWN
                elif part and isinstance(value, Object):
                    value.attributes[part.partition(".")[0]] = UNKNOWN
                else:
                    changed.attributes.pop(name, None)
            if called and not isinstance(value, Section | Object | str | int | float | None):
                changed.attributes.pop(name, None)

    def _changes(self, of: Target, methods: frozenset[str], called: bool) -> Sequence[str] | None:
        """Return the source text of the expressions that methods of a class, or the methods that these call, change.
        Return None if they may change any attribute of their object."""

        def find() -> list[str] | None:
            line = self._resolution_order(of)
            reached, more, found = frozenset[str](), methods, list[str]()
            if called and any(None in self._direct_bases(each) for each in line):
                # A method that is not read may call all others.
                inside = (each for place in line for node in self._definitions(place) for each in node.body)
                more |= {each.name for each in inside if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
                more -= {"__init__"}
            while new := more - reached:
                reached |= new
                defined = (each for name in new for each in self._defined(line, name))
                for place, node in ((place, node) for place, nodes in defined for node in nodes):
                    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                        effects = self._effects(node)
                        if "__dict__" in effects.attributes or ("self", Use.PASSED) in effects.used:
                            return None
                        more |= effects.attributes
                        found += changed_in(node)
                        continue
                    # A function may be assigned too. A class does not get the object.
                    value = getattr(node, "value", None)
                    if not isinstance(node, ast.AnnAssign) and not isinstance(value, _DATA):
                        reading = _Reading(place.module, self.tree, [], {})
                        if value is None or not isinstance(reading._value_or_unknown(value, {}), Class):
                            return None
            return found

        return self.tree.recall(("changes", of, methods, called), find)

    def _bind(self, target: ast.expr, value: object, names: Names) -> None:
        match target:
            case ast.Name(id=name):
                names[name] = value
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                values = [UNKNOWN] * len(parts)
                if isinstance(value, list | tuple) and not any(isinstance(each, ast.Starred) for each in parts):
                    if len(value) != len(parts):
                        message = f"expected {len(parts)} values, got {len(value)}"
                        self._fail(Failed("ValueError", message, target))
                    else:
                        values = [*value]
                for part, each in zip(parts, values, strict=True):
                    self._bind(part, each, names)
            case ast.Starred(value=of):
                self._bind(of, UNKNOWN, names)
            case ast.Attribute(value=of, attr=name):
                owner = self._value_or_unknown(of, names)
                if isinstance(owner, Object):
                    owner.attributes[name] = value
                    setters = self._defined(self._resolution_order(owner.of), name)
                    if name == "__dict__" or any(isinstance(nodes[0], ast.FunctionDef) for _unused, nodes in setters):
                        owner.attributes.clear()
                elif isinstance(owner, Section):
                    owner.set(name, value)
            case ast.Subscript(value=of, slice=index) if isinstance(
                owner := self._value_or_unknown(of, names), dict | Section
            ) and (isinstance(key := self._value_or_unknown(index, names), str | int)):
                if isinstance(owner, Section):
                    owner.set(str(key), value)
                else:
                    owner[key] = value
            case ast.Subscript(value=of) if isinstance(owner := self._value_or_unknown(of, names), dict | list):
                spoil(owner)
            # Only this part of the object may change.
            case ast.Subscript(value=ast.Attribute(value=of, attr=name)) if isinstance(
                owner := self._value_or_unknown(of, names), Object
            ):
                owner.attributes[name] = UNKNOWN
            case _:
                for each in ast.walk(target):
                    if isinstance(each, ast.Name):
                        self._change(each.id, names)

    def _fail(self, failed: Failed) -> None:
        # After another error, it may only follow from that one.
        if not self.said:
            self.said.append(str(failed))

    def _value_or_unknown(self, node: ast.expr, names: Names) -> object:
        try:
            return self._value(node, names)
        except Failed as failed:
            self._fail(failed)
            return UNKNOWN
        except (Unknown, TypeError, ValueError, ArithmeticError, LookupError):
            return UNKNOWN

    def _result(self, node: ast.expr, names: Names) -> object:
        """Return the value of an expression. If the expression cannot be followed, everything that it may change is
        unknown."""
        followed = False
        try:
            found = self._evaluate(node, names)
            if found is not UNKNOWN and not is_spoiled(found):
                return found
            followed = isinstance(node, ast.Call) or not any(isinstance(each, ast.Call) for each in ast.walk(node))
        except Failed as failed:
            self._fail(failed)
        except (Unknown, TypeError, ValueError, ArithmeticError, LookupError):
            pass
        if not followed:
            self._forget(node, names)
        return UNKNOWN

    def _holds(self, test: ast.expr, names: Names) -> bool | None:
        found = self._value_or_unknown(test, names)
        return None if found is UNKNOWN else bool(found)

    def _text(self, message: ast.expr | None, names: Names) -> str:
        found = self._value_or_unknown(message, names) if message is not None else UNKNOWN
        return "" if found is UNKNOWN else str(found)

    def _message_of(self, error: ast.expr | None, names: Names) -> str:
        message = error.args[0] if isinstance(error, ast.Call) and error.args else None
        return self._text(message, names) or ast.unparse(error or ast.Raise())

    def _value(self, node: ast.expr, names: Names) -> Any:
        value = self._evaluate(node, names)
        if value is UNKNOWN or is_spoiled(value):
            raise Unknown
        return value

    def _evaluate(self, node: ast.expr, names: Names) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name) if name in self.local and name not in names:
                said = f"cannot access local variable '{name}' where it is not associated with a value"
                raise Failed("UnboundLocalError", said, node)
            case ast.Name(id=name):
                return names[name] if name in names else self._global(name)
            case ast.Attribute(value=ast.Name(id="torch"), attr=name) if name in _DTYPES and "torch" not in names:
                return Member("torch", name)
            case ast.Attribute(value=owner, attr=name):
                of = self._value(owner, names)
                if of is None:
                    raise Failed("AttributeError", f"'NoneType' object has no attribute '{name}'", node)
                if isinstance(of, Object) and self._lacks(of, name):
                    raise Failed("AttributeError", f"'{of.of.name}' object has no attribute '{name}'", node)
                return self._attribute(of, name)
            case ast.BoolOp(op=op, values=values):
                return self._either(isinstance(op, ast.Or), values, names)
            case ast.IfExp(test=test, body=body, orelse=other):
                return self._value(body if self._value(test, names) else other, names)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._value(operand, names)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._value(operand, names)
            # Whatever is divided.
            case ast.BinOp(left=ast.Call(func=ast.Name(id="len")), op=ast.FloorDiv() | ast.Mod(), right=right) if (
                self._value(right, names) == 0
            ):
                raise Failed("ZeroDivisionError", "division by zero", node)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMPUTES:
                sides = [self._value(each, names) for each in (left, right)]
                if _is_huge(op, sides):
                    raise Unknown
                return computed(node, _COMPUTES[type(op)], *sides)
            case ast.Compare(left=left, ops=ops, comparators=others):
                # A set is followed only where something is looked up in it: in all else, it differs from a list.
                searched = [
                    ast.List(each.elts) if isinstance(each, ast.Set) and isinstance(op, ast.In | ast.NotIn) else each
                    for op, each in zip(ops, others, strict=True)
                ]
                sides = [self._value_or_unknown(each, names) for each in (left, *searched)]
                if UNKNOWN in sides:
                    refuse_text(node, ops, sides)
                    raise Unknown
                if any(isinstance(op, ast.Eq | ast.NotEq) for op in ops) and any(map(is_partly_unknown, sides)):
                    raise Unknown
                pairs = zip(ops, sides, sides[1:], strict=False)
                return all(computed(node, _COMPARES[type(op)], one, other) for op, one, other in pairs)
            case ast.List(elts=parts):
                return [self._value(part, names) for part in parts]
            case ast.Tuple(elts=parts):
                return tuple(self._value(part, names) for part in parts)
            case ast.Dict(keys=keys, values=contents) if None not in keys:
                named = zip((key for key in keys if key is not None), contents, strict=True)
                return {self._value(key, names): self._result(each, names) for key, each in named}
            case ast.Subscript(value=of, slice=ast.Slice(lower=lower, upper=upper, step=None)):
                ends = [None if each is None else self._value(each, names) for each in (lower, upper)]
                owner = self._value(of, names)
                return type(owner)(owner[slice(*ends)])
            case ast.Subscript(value=of, slice=index):
                owner, key = self._value(of, names), self._value(index, names)
                return owner.get(key) if isinstance(owner, Section) else computed(node, operator.getitem, owner, key)
            case ast.JoinedStr(values=parts):
                return "".join(self._shown(part, names) for part in parts)
            case ast.Call(
                func=ast.Name(id="all" | "any" as name),
                args=[ast.GeneratorExp(elt=part, generators=[ast.comprehension(target=target, iter=of, ifs=[])])],
            ):
                inner, values = {**names}, self._value(of, names)
                if not isinstance(values, list | tuple | range) or values[_MOST_REPEATED:]:
                    raise Unknown
                for each in values:
                    self._bind(target, each, inner)
                    # Python does not ask for the rest.
                    if bool(self._value(part, inner)) is (name == "any"):
                        return name == "any"
                return name == "all"
            case ast.Call():
                return self._called(node, names)
        raise Unknown

    def _shown(self, part: ast.expr, names: Names) -> str:
        if not isinstance(part, ast.FormattedValue):
            return str(self._value(part, names))
        value = self._value(part.value, names)
        if isinstance(value, Member):
            raise Unknown
        value = repr(value) if part.conversion == ord("r") else value
        return format(value, self._value(part.format_spec, names) if part.format_spec else "")

    def _attribute(self, owner: object, name: str) -> object:
        if isinstance(owner, Section):
            return owner.get(name)
        if isinstance(owner, Module) and owner.tree is self.tree:
            return replace(self, module=owner.name)._global(name)
        if isinstance(owner, Object) and name in owner.attributes:
            return owner.attributes[name]
        if isinstance(owner, Member) and name == "value":
            return owner.value
        if isinstance(owner, Class | Object):
            place = owner.target if isinstance(owner, Class) else owner.of
            for each, nodes in self._defined(self._resolution_order(place), name):
                match nodes:
                    case [ast.Assign(value=ast.Constant(value=value))] if isinstance(owner, Class):
                        text = self.tree.read(each.module) or b""
                        if re.search(rb"(?<!self)\.%s [-+*/|]?=(?!=)" % name.encode(), text):
                            raise Unknown
                        return Member(str(each), value) if self._is_enumeration(each) else value
                    # A method may set a single value, but not the list of the known ones.
                    case [ast.Assign(value=ast.List() as value)]:
                        return self._value(value, {})
                    case [ast.Assign(value=ast.Dict() as value) | ast.AnnAssign(value=ast.Dict() as value)]:
                        return self._constant(Target(each.module, f"{each.qualname}.{name}"), value)
        raise Unknown

    def _lacks(self, owner: Object, name: str) -> bool:
        """Return whether an object of a dataclass has no such attribute, because no other code has had the object, and
        no code of upstream's names the attribute in a text or sets it in any object."""
        line, there = self._resolution_order(owner.of), {*owner.attributes}
        if name in dir(Mapping) or any(each.startswith("__") for each in (name, *there)):
            return False
        fields = {field for each in line for field, _unused in self._fields(each)}
        if name in there or not fields or not fields <= there or not all(map(self._is_whole, line)):
            return False
        if any(any(self._defined(line, each)) for each in (name, "__getattr__", "__getattribute__")):
            return False
        ways = (f".{name} =", f".{name}=", f".{name}: ", f'"{name}"', f"'{name}'")
        return not any(True for way in ways for _unused in self.tree.modules_with((owner.of.package,), (way,)))

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
        if isinstance(call.func, ast.Call):
            # Like Python, before the arguments.
            self._value_or_unknown(call.func, names)
        if any(isinstance(each, ast.Starred) for each in call.args):
            raise Unknown
        args = [self._result(each, names) for each in call.args]
        given = self._keywords(call, names)
        match call.func:
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name) if self.within is not None:
                if isinstance(owner := names.get("self"), Object):
                    return self._method(self._bases(self.within), name, owner, args, given)
            case ast.Attribute(value=ast.Name(id="object"), attr="__setattr__") if isinstance(args[0], Object):
                if not isinstance(args[1], str):
                    args[0].attributes.clear()
                    raise Unknown
                args[0].attributes[args[1]] = args[2]
                return None
            case ast.Attribute(value=ast.Name(id="importlib"), attr="import_module") if isinstance(args[0], str):
                return self._module(args[0], call)
            case ast.Attribute(attr="spec_from_file_location") if isinstance(args[1], str) and is_file(args[1]):
                return Module(args[1], None)
            case ast.Attribute(attr="module_from_spec") if isinstance(args[0], Module):
                return args[0]
            case ast.Attribute(attr="exists") if isinstance(args[0], str) and is_file(args[0]):
                return True
            case ast.Attribute(attr="deepcopy") if isinstance(args[0], list):
                return type(args[0])(args[0])
            case ast.Attribute(attr="get") if ast.unparse(call.func) == "sys.modules.get":
                return None
            case ast.Name(id="hasattr") if isinstance(args[0], Module) and isinstance(args[1], str):
                return has_member(args[0], args[1])
            case ast.Attribute(value=ast.Name(id="OmegaConf"), attr="select") if isinstance(args[0], Section):
                return self._looked_up(args[0], args[1], given.get("default"))
            case ast.Attribute(value=of, attr=name):
                owner = self._value(of, names)
                if owner is None:
                    raise Failed("AttributeError", f"'NoneType' object has no attribute '{name}'", call.func)
                return self._call_method(owner, name, args, given)
            case ast.Name(id="getattr") if isinstance(args[0], Object | Module) and isinstance(args[1], str):
                if isinstance(args[0], Object):
                    return self._attribute(args[0], args[1])
                return args[2] if args[2:] and not has_member(args[0], args[1]) else member_of(args[0], args[1], call)
            case ast.Name(id=name) if name == _SECTION_TO_OBJECT and len(args) == 1 and isinstance(args[0], Section):
                return self.make_section(args[0])
            case ast.Name(id="isinstance"):
                return is_instance(args[0], call.args[1])
            case ast.Name(id="dict") if not args:
                return given
            case ast.Name(id=name) if name in _BUILTINS and args and not given:
                long = any(isinstance(each, range) and each[_MOST_REPEATED:] for each in args)
                if long or not all(isinstance(each, (*PLAIN, range)) for each in args):
                    raise Unknown
                return computed(call, _BUILTINS[name], *args)
            case ast.Name(id="init_device_mesh"):
                # Torch raises an error if a mesh is larger than the world, and in a rank that is not in the mesh.
                shape, world = given.get("mesh_shape", args[1] if len(args) > 1 else UNKNOWN), self.known.get(WORLD)
                if world and isinstance(shape, tuple) and UNKNOWN not in shape and math.prod(shape) != world:
                    raise Failed("RuntimeError", f"the device mesh {shape} does not match the {world} ranks", call)
                raise Unknown
            case ast.Name(id=name):
                return self._call(names[name] if name in names else self._global(name), args, given)
        raise Unknown

    def _keywords(self, call: ast.Call, names: Names) -> dict[str, object]:
        given: dict[str, object] = {}
        for each in call.keywords:
            value = self._result(each.value, names)
            if each.arg is not None:
                given[each.arg] = value
            elif isinstance(value, dict):
                given.update(value)
            else:
                raise Unknown
        return given

    def _call_method(self, owner: Any, name: str, args: Sequence[Any], given: Mapping[str, object]) -> object:
        """Interpret a method of one of upstream's classes or objects, or evaluate a method of a Python type."""
        match owner:
            case Module():
                return self._call(self._attribute(owner, name), args, given)
            case Class(target=target):
                return self._method(self._resolution_order(target), name, None, args, given)
            case Object(of=of):
                return self._method(self._resolution_order(of), name, owner, args, given)
            case str() if name in _STRING_METHODS and not given and UNKNOWN not in args:
                return getattr(owner, name)(*args)
            case Section() | dict() if name == "get" and not given:
                return self._looked_up(owner, *args)
            case Section() if name in ("keys", "values") and not args:
                return [each if name == "keys" else owner.get(each) for each in owner.names()]
            case dict() if name == "keys":
                return list(owner)
            case dict() if name == "update" and not args:
                return owner.update(given)
            case dict() | list() if name in MUTATING:
                spoil(owner)
        raise Unknown

    def _call(self, called: object, args: Sequence[object], given: Mapping[str, object]) -> object:
        if isinstance(called, Class):
            return self.made(called.target, args, given)
        if isinstance(called, Foreign):
            module = called.module
            if module.tree is None:
                raise Unknown
            reading = replace(self, tree=module.tree, module=module.name)
            return reading.made(reading._class(module.name, called.name), args, given)
        if isinstance(called, Function):
            return self._within(called.module, None).body(called.node, args, given, called.names)
        raise Unknown

    def _module(self, name: str, call: ast.Call) -> Module:
        """Return a module that is installed on this machine and that upstream imports by name."""
        package = name.partition(".")[0]
        tree = self.tree.recall(("installed", package), lambda: SourceTree.installed((package,)))
        if package not in tree:
            raise Unknown
        if tree.read(name) is None and not tree.is_package(name):
            if tree.is_compiled(name):
                raise Unknown
            above, _unused, last = name.rpartition(".")
            raise Failed(
                "ModuleNotFoundError", f"no module named {name}{did_you_mean(last, tree.modules_in(above))}", call
            )
        return Module(name, tree)

    def _looked_up(self, owner: Section | dict[str, object], name: object, default: object = None) -> object:
        if not isinstance(name, str):
            raise Unknown
        return owner.get(name) if name in owner else default

    def make_section(self, of: Section) -> object:
        """Return the object that Hydra makes from a section. Hydra instantiates the `_target_` classes of the section
        and its subsections."""
        # Hydra reads the names that begin with an underscore.
        names = [name for name in of.names() if re.fullmatch(r"[^\W_]\w*", name)]
        return self.made(self._named_class(of), [], {name: self._in_section(of.get(name)) for name in names})

    def _in_section(self, value: object) -> object:
        if isinstance(value, Section) and "_target_" in value:
            try:
                return self.make_section(value)
            except Unknown:
                return UNKNOWN
        if isinstance(value, Section):
            for name in value.names():
                self._in_section(value.get(name))
        return value

    def _named_class(self, of: Section) -> Target:
        """Return the class in a section's `_target_`."""
        module, _unused, name = str(of.get("_target_")).rpartition(".")
        return self._class(module, name)

    def field_types(self, of: Section) -> dict[str, str]:
        """Return the annotated types of the fields of the class in a section's `_target_`."""
        found: dict[str, str] = {}
        for each in reversed(self._resolution_order(self._named_class(of))):
            found |= {name: ast.unparse(node.annotation) for name, node in self._fields(each)}
        return found

    def _fields(self, of: Target) -> Iterator[tuple[str, ast.AnnAssign]]:
        for node in self._definitions(of):
            for each in node.body:
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                    yield each.target.id, each

    def _imported(self, module: str, name: str) -> object:
        package = module.partition(".")[0]
        try:
            if package in _FOLLOWED and package not in self.tree:
                return Foreign(self._module(module, ast.Call(ast.Name(module), [], [])), name)
            return replace(self, module=module)._global(name)
        except Failed as failed:
            self._fail(failed)
        except Unknown:
            pass
        return UNKNOWN

    def _global(self, name: str) -> object:
        """Return the value of one of the module's global names: a class, a function, or a constant."""
        for place in self._places(Target(self.module, name)):
            match self.tree.nodes(place):
                case [ast.ImportFrom() as node]:
                    source = self.tree.imported_module(place.module, node)
                    first = next(each.name for each in node.names if (each.asname or each.name) == place.name)
                    if source.partition(".")[0] in _FOLLOWED:
                        return self._imported(source, first)
                    if self.tree.read(f"{source}.{first}") is not None and not self.tree.nodes(Target(source, first)):
                        return Module(f"{source}.{first}", self.tree)
                case [ast.Import(names=[ast.alias(name=full, asname=str())])] if self.tree.read(full) is not None:
                    return Module(full, self.tree)
                case _ if self._definitions(place):
                    return Class(place)
                case [ast.FunctionDef(decorator_list=[]) as node]:
                    return Function(place.module, node, {})
                case [ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value)]:
                    return self._constant(place, value)
        raise Unknown

    def _constant(self, place: Target, value: ast.expr) -> object:
        text = self.tree.read(place.module) or b""
        stored = self.tree.recall(("stored", place.module), lambda: stored_parts(self.tree.parse(place.module)))
        if place.name in stored or re.search(MUTATING_CALL % ((re.escape(place.name.encode()),) * 2), text):
            raise Unknown
        found = replace(self._within(place.module, None), local=frozenset())._value(value, {})
        if isinstance(found, dict):
            return self.tree.recall(("registry", place), lambda: self._registry(place, found))
        return found

    def _registry(self, place: Target, own: Mapping[object, object]) -> Registry:
        registry = Registry(own)
        registry.registrations = self._registrations(place, registry)
        return registry

    def _registrations(self, place: Target, registry: Registry) -> Generator[None, None, None]:
        """Follow the calls in upstream's source that register something in a registry, those in the nearest modules
        first. If a call cannot be followed, the whole registry is unknown."""
        scopes: list[ast.AST | None] = [self.tree.parse(place.module)]
        if place.owner:
            scopes = [*self.tree.nodes(Target(place.module, place.owner))]
        inside = [each for scope in scopes for each in getattr(scope, "body", ())]
        stored = [each.name for each in inside if isinstance(each, ast.FunctionDef) and stores(each, place)]
        if not stored:
            return
        words = [f".{stored[0]}"] if place.owner else stored
        near = self.tree.modules_with((place.module.rpartition(".")[0],), words)
        modules = itertools.chain([place.module], near, self.tree.modules_with((place.package,), words))
        done: set[str] = set()
        try:
            for module in modules:
                for call, registered in self._registering(module, stored, place) if module not in done else ():
                    reading = _Reading(module, self.tree, [], {})
                    decorator = reading._value(call, {})
                    if isinstance(decorator, Function):
                        reading._call(decorator, [registered], {})
                    yield
                done.add(module)
        except ENDS:
            spoil(registry)
            raise

    def _registering(self, module: str, stored: Sequence[str], registry: Target) -> Iterator[tuple[ast.Call, object]]:
        """Yield the calls in a module that register something in a registry, with the registered functions."""
        tree = self.tree.parse(module)
        named = {*stored, *(each.name for each in self._imports(module) if each.original in stored)}
        functions: dict[int, object] = {}
        called: set[int] = set()
        for node in ast.walk(tree) if tree is not None else ():
            match node:
                case ast.FunctionDef():
                    # The other decorators of upstream's functions only warn.
                    functions |= {id(each): Function(module, node, {}) for each in node.decorator_list}
                case ast.Call(func=func):
                    called.add(id(func))
                    if self._registers(module, func, named, registry):
                        yield node, functions.get(id(node), UNKNOWN)
                case ast.Name(ctx=ast.Load()) | ast.Attribute(ctx=ast.Load()) if id(node) not in called:
                    if self._registers(module, node, named, registry):
                        raise Unknown

    def _registers(self, module: str, func: ast.expr, named: Set[str], registry: Target) -> bool:
        """Return whether an expression in `module` is one of the functions that store something in a registry. `named`
        contains the functions' names.

        Raises:
            Unknown: the expression may be any function.
        """
        name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        if name not in named or (registry.owner and not isinstance(func, ast.Attribute)):
            return False
        of = func.value if registry.owner and isinstance(func, ast.Attribute) else func
        with contextlib.suppress(Unknown):
            match _Reading(module, self.tree, [], {})._value(of, {}):
                case Class(target=target):
                    return Target(registry.module, registry.owner) in self._resolution_order(target)
                case Function(module=found):
                    return found == registry.module
        # An object may be a registry's, unless other code than upstream's made it.
        name = getattr(of, "id", "")
        made = (each.value for each in self.tree.nodes(Target(module, name)) if isinstance(each, ast.Assign))
        makers = [each.func for each in made if isinstance(each, ast.Call)]
        if not registry.owner or all(self._is_foreign(module, each) for each in makers or [of]):
            return False
        raise Unknown

    def _is_foreign(self, module: str, of: ast.expr) -> bool:
        """Return whether an expression's first name is from a package whose source is not read: the module imports it,
        or imports a function that returns only such names."""
        while isinstance(of, ast.Attribute):
            of = of.value
        named = getattr(of, "id", "")
        sources = [each.source for each in self._imports(module) if each.name == named]
        if not any((package := each.partition(".")[0]) in self.tree and package not in _UNREAD for each in sources):
            return bool(sources)
        for place in self._places(Target(module, named)):
            for node in self.tree.nodes(place):
                if isinstance(node, ast.FunctionDef):
                    values = [each.value for each in ast.walk(node) if isinstance(each, ast.Return)]
                    return all(isinstance(each, ast.Name) and self._is_foreign(place.module, each) for each in values)
        return False

    def _imports(self, module: str) -> Sequence[_Import]:
        """Return all names that a module imports, also those that a function imports for itself."""

        def find() -> Iterator[_Import]:
            for node in ast.walk(self.tree.parse(module) or ast.Module([], [])):
                match node:
                    case ast.ImportFrom(names=names):
                        source = self.tree.imported_module(module, node)
                        yield from (_Import(each.asname or each.name, each.name, source) for each in names)
                    case ast.Import(names=names):
                        parts = ((each.asname or each.name.partition(".")[0], each.name) for each in names)
                        yield from (_Import(name, full, full) for name, full in parts)

        return self.tree.recall(("imports", module), lambda: [*find()])

    def _defined(self, line: Sequence[Target], name: str) -> Iterator[tuple[Target, Sequence[ast.stmt]]]:
        """Yield each class that defines a name, with its definitions of that name."""
        for each in line:
            if nodes := self.tree.nodes(Target(each.module, f"{each.qualname}.{name}")):
                yield each, nodes

    def _method(
        self,
        line: Sequence[Target],
        name: str,
        owner: Object | None,
        args: Sequence[object],
        given: Mapping[str, object],
    ) -> object:
        """Interpret a method of an object. If the method is called on its class, `owner` is None, and `args` contains
        the object, if there is one."""
        for each, nodes in self._defined(line, name):
            match nodes:
                case [ast.FunctionDef(decorator_list=[]) as node]:
                    own = [owner, *args] if owner is not None else args
                    return self._within(each.module, each).body(node, own, given)
                case [ast.FunctionDef(decorator_list=[ast.Name(id="staticmethod")]) as node]:
                    return self._within(each.module, each).body(node, args, given)
                case [ast.FunctionDef() as node] if _is_class_method(node):
                    return self._within(each.module, each).body(node, [Class(line[0]), *args], given)
            break
        if owner is not None:
            self._forget_state(owner, frozenset({name}))
        for argument in args:
            if isinstance(argument, Object):
                argument.attributes.clear()
        raise Unknown

    def _within(self, module: str, within: Target | None) -> _Reading:
        if self.depth > _MAX_DEPTH:
            raise Unknown
        return replace(self, module=module, within=within, depth=self.depth + 1, enters=False)

    def body(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef,
        args: Sequence[object],
        given: Mapping[str, object],
        around: Mapping[str, object] | None = None,
    ) -> object:
        """Interpret a function's body with the given arguments and the names of the enclosing scope, and return the
        result."""
        kinds = self.tree.recall(("kinds", node), lambda: {kind for each in node.body for kind in leaving(each)})
        if {ast.Yield, ast.YieldFrom} & kinds:
            raise Unknown
        taken = node.args
        names: Names = dict(around or {})
        defaults = [*taken.defaults, *(each or ast.Name("None") for each in taken.kw_defaults)]
        parameters = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs]
        for parameter, default in zip(reversed(parameters), reversed(defaults), strict=False):
            names[parameter.arg] = default.value if isinstance(default, ast.Constant) else UNKNOWN
        names |= dict(zip((each.arg for each in [*taken.posonlyargs, *taken.args]), args, strict=False)) | dict(given)
        for parameter in parameters[len(args) :]:
            names.setdefault(parameter.arg, UNKNOWN)
        names |= {each.arg: UNKNOWN for each in (taken.vararg, taken.kwarg) if each is not None}
        local = self.tree.recall(("local", node), lambda: local_names(node))
        ended = replace(self, local=local).run(node.body, names)
        return None if ended is None else ended.value

    def made(self, target: Target, args: Sequence[object], given: Mapping[str, object]) -> Object:
        """Return a stand-in for a new instance of a class, after interpreting its `__init__`, or its `__post_init__`
        if it is a dataclass."""
        made, line = Object(target), self._resolution_order(target)
        if any(map(self._is_made_elsewhere, line)):
            raise Unknown
        if any(self._defined(line, "__init__")):
            self._method(line, "__init__", made, args, given)
            return made
        for each in reversed(line):
            for name, node in self._fields(each):
                default = node.value if not args else None
                made.attributes[name] = default.value if isinstance(default, ast.Constant) else UNKNOWN
        unexpected = [name for name in given if name not in made.attributes]
        # Python names only the first.
        for name in unexpected[:1] if all(map(self._is_whole, line)) else ():
            self.said.append(f"TypeError: {target.name}.__init__() got an unexpected keyword argument '{name}'")
        made.attributes.update(given)
        if any(self._defined(line, "__post_init__")):
            self._method(line, "__post_init__", made, [], {})
        return made

    def _definitions(self, target: Target) -> list[ast.ClassDef]:
        return [node for node in self.tree.nodes(target) if isinstance(node, ast.ClassDef)]

    def _is_made_elsewhere(self, target: Target) -> bool:
        """Return whether other code than `__init__` may make the objects of a class: a decorator, or a metaclass."""
        for node in self._definitions(target):
            bases, decorators = " ".join(map(ast.unparse, node.bases)), map(ast.unparse, node.decorator_list)
            metaclasses = (ast.unparse(each.value) for each in node.keywords if each.arg == "metaclass")
            if (
                re.search(r"Enum|Flag|NamedTuple|TypedDict", bases)
                or not all(re.search(r"dataclass|register|ray\.remote", each) for each in decorators)
                or not all(each.endswith("ABCMeta") for each in metaclasses)
            ):
                return True
        return bool(self.tree.nodes(Target(target.module, f"{target.qualname}.__new__")))

    def _is_enumeration(self, target: Target) -> bool:
        """Return whether a class is an enumeration whose members are no strings or numbers."""
        bases = [[ast.unparse(each) for each in node.bases] for node in self._definitions(target)]
        compares = self.tree.nodes(Target(target.module, f"{target.qualname}.__eq__"))
        return not compares and (["Enum"] in bases or ["enum.Enum"] in bases)

    def _resolution_order(self, target: Target) -> list[Target]:
        """Return a class and those of its base classes whose source is available."""
        return self.tree.recall(("line", target), lambda: [target, *self._bases(target)])

    def _bases(self, target: Target) -> list[Target]:
        return [each for base in self._direct_bases(target) if base for each in self._resolution_order(base)]

    def _direct_bases(self, target: Target) -> list[Target | None]:
        """Return the base classes of a class that may have fields. None is a class whose source is not available."""
        found: list[Target | None] = []
        for base in (base for node in self._definitions(target) for base in node.bases):
            if ast.unparse(base) not in ("ABC", "abc.ABC", "collections.abc.Mapping", "object"):
                try:
                    found.append(self._class(target.module, base.id if isinstance(base, ast.Name) else ""))
                except Unknown:
                    found.append(None)
        return found

    def _is_whole(self, target: Target) -> bool:
        """Return whether a class is a dataclass, and all its base classes that may have fields are known."""
        decorators = [ast.unparse(each) for node in self._definitions(target) for each in node.decorator_list]
        return any("dataclass" in each for each in decorators) and None not in self._direct_bases(target)

    def _places(self, target: Target, before: Sequence[Target] = ()) -> Iterator[Target]:
        """Yield the locations in the chain of imports that starts at a target, also through `from … import *`."""
        last = None
        for last in self.tree.places(target, _UNREAD):
            yield last
        for each in self.tree.origins(last) if last is not None else [target]:
            # Modules may import everything from each other.
            if each.package not in _UNREAD and each not in before and not self.tree.nodes(each):
                for node in self.tree.nodes(Target(each.module, "*")):
                    if isinstance(node, ast.ImportFrom):
                        source = self.tree.imported_module(each.module, node)
                        yield from self._places(Target(source, each.name), [*before, each])

    def _class(self, module: str, name: str) -> Target:
        for place in self._places(Target(module, name)):
            if self._definitions(place):
                return place
        raise Unknown


def _only_asks(test: ast.expr) -> bool:
    """Return whether a condition calls only built-in functions that change nothing."""
    calls = [each.func for each in ast.walk(test) if isinstance(each, ast.Call)]
    return all(isinstance(each, ast.Name) and each.id in (*_BUILTINS, *HARMLESS, "getattr") for each in calls)


def _is_huge(op: ast.operator, sides: Sequence[object]) -> bool:
    """Return whether the result of an operator may be longer or larger than anything in a configuration."""
    lengths = [len(each) for each in sides if isinstance(each, str | list | tuple)]
    numbers = [abs(each) for each in sides if isinstance(each, int | float)]
    size = math.prod([*lengths, *numbers]) if isinstance(op, ast.Mult) else sum(lengths or numbers)
    return size > (_LONGEST if lengths else _GREATEST)


def _is_class_method(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return [ast.unparse(each) for each in function.decorator_list] == ["classmethod"]
