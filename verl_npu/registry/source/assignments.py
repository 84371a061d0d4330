"""What an upstream's own patch modules mean to assign in other packages: read from their source, nothing is imported.

`module.Class.method = function`, `setattr` with a known name, the functions of the module that are called while it is
imported, loops over tables of such functions, and branches: each assignment is found, with what it depends on.
"""

from __future__ import annotations

import ast
from collections import ChainMap
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from weakref import WeakKeyDictionary

from .named import PatchModule
from .tree import SourceTree


@dataclass(frozen=True, slots=True)
class Reference:
    """A module, or something in one, by its full name."""

    place: str


@dataclass(frozen=True, slots=True, eq=False)
class Local:
    """A function or class that the source defines, and the scope around it."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    scope: Scope


@dataclass(frozen=True, slots=True)
class Table:
    """The elements of a list, a tuple or a set; or of a dictionary, pairs of key and value."""

    values: tuple[Value | None, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """A constant string."""

    text: str


Value = Reference | Local | Table | Text


# Names and what they stand for, None where that cannot be told; what is not known is looked up in the scope around.
Scope = ChainMap[str, Value | None]


def merged(scopes: Sequence[Scope]) -> dict[str, Value | None]:
    """Return what names stand for after one of several ways: what differs cannot be told."""
    found: dict[str, Value | None] = {}
    inner = [scope.maps[0] for scope in scopes]
    for name in dict.fromkeys(name for names in inner for name in names):
        values = [names[name] for names in inner if name in names]
        found[name] = values[0] if all(value == values[0] for value in values) else None
    return found


def evaluate(node: ast.expr, scope: Scope) -> Value | None:
    """Return what an expression stands for; None if that cannot be told."""
    if isinstance(node, ast.Name):
        return scope.get(node.id)
    if isinstance(node, ast.Constant):
        return Text(node.value) if isinstance(node.value, str) else None
    if isinstance(node, ast.Attribute):
        owner = evaluate(node.value, scope)
        return Reference(f"{owner.place}.{node.attr}") if isinstance(owner, Reference) else None
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return Table(tuple(evaluate(element, scope) for element in node.elts))
    if isinstance(node, ast.Dict):
        pairs = [(key, value) for key, value in zip(node.keys, node.values, strict=True) if key is not None]
        return Table(tuple(Table((evaluate(key, scope), evaluate(value, scope))) for key, value in pairs))
    if isinstance(node, ast.Call):
        return _called(node, scope)
    return None


def _called(node: ast.Call, scope: Scope) -> Value | None:
    """What a call returns: `getattr` with a known name, and the views of a dictionary."""
    if isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(node.args) >= 2:
        owner, name = (evaluate(argument, scope) for argument in node.args[:2])
        known = isinstance(owner, Reference) and isinstance(name, Text)
        return Reference(f"{owner.place}.{name.text}") if known else None  # type: ignore[union-attr]
    if isinstance(node.func, ast.Attribute) and not node.args:
        table = evaluate(node.func.value, scope)
        if isinstance(table, Table) and node.func.attr == "items":
            return table
        if isinstance(table, Table) and node.func.attr in ("values", "keys"):
            index = 1 if node.func.attr == "values" else 0
            return Table(tuple(pair.values[index] if isinstance(pair, Table) else None for pair in table.values))
    return None


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition."""

    text: str
    """As the source has it, for people."""
    place: str = ""
    """What has to be there, by its full name; empty if the condition is of another kind."""
    there: bool = True
    """Whether it has to be there, or must not be."""


Conditions = tuple[Condition, ...]
"""All of them have to hold."""


def conditions_of(test: ast.expr, scope: Scope, given: Collection[str], wanted: bool = True) -> Conditions | None:
    """Return what has to hold for `test` to be as `wanted`: nothing if it always is, None if it never is.

    `given` are the names of functions and constants that are true.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return conditions_of(test.operand, scope, given, not wanted)
    if isinstance(test, ast.BoolOp):
        parts = [conditions_of(value, scope, given, wanted) for value in test.values]
        if isinstance(test.op, ast.And) == wanted:
            return None if None in parts else tuple(c for part in parts if part is not None for c in part)
        possible = [part for part in parts if part is not None]
        if () in possible:
            return ()
        return _other(test, wanted) if len(possible) > 1 else possible[0] if possible else None
    if isinstance(test, ast.Constant):
        return () if bool(test.value) == wanted else None
    called = test.func if isinstance(test, ast.Call) else test
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    if name in given:
        return () if wanted else None
    if isinstance(test, ast.Call) and name == "hasattr" and len(test.args) == 2:
        owner, attribute = (evaluate(argument, scope) for argument in test.args)
        if isinstance(owner, Reference) and isinstance(attribute, Text):
            text = _other(test, wanted)[0].text
            return (Condition(text, f"{owner.place}.{attribute.text}", wanted),)
    return _other(test, wanted)


def _other(test: ast.expr, wanted: bool) -> Conditions:
    text = ast.unparse(test)
    return (Condition(text if wanted else f"not ({text})"),)


# Functions that call one another are followed this deep.
_DEPTH = 8


class StepKind(str, Enum):
    """What one step of a patch module does."""

    IMPORT = "import"
    """A module is imported."""
    TAKE = "take"
    """A name is taken from a module, which may be a module in it."""
    ASSIGN = "assign"
    UNREAD = "unread"
    """A function is called that the source does not tell, out of a table that is made or kept elsewhere."""


@dataclass(frozen=True, slots=True)
class Block:
    """The body of a `try`, or a whole module or function: a step that fails ends the innermost one that catches it."""

    number: int
    catches_imports: bool = False
    """Whether it has a handler for imports that fail: upstream expects that what it imports may not be there."""
    catches_all: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One import or one assignment, in the order in which they are executed."""

    kind: StepKind
    place: str
    """What is imported or assigned to, with dots alone: where the module ends, the source here need not tell."""
    value: str
    """The source of what is assigned."""
    call: str
    """The function that has to be called for it; empty if importing the module is enough."""
    line: int
    conditions: Conditions
    blocks: tuple[Block, ...]

    @property
    def depends(self) -> bool:
        """Whether it is done only under a condition that no source tree can tell."""
        return any(not condition.place for condition in self.conditions)


@dataclass(frozen=True, slots=True)
class _At:
    """Where in the module the reader is."""

    call: str
    conditions: Conditions
    blocks: tuple[Block, ...]
    depth: int = 0

    def under(self, conditions: Conditions) -> _At:
        return replace(self, conditions=(*self.conditions, *conditions))


_read: WeakKeyDictionary[SourceTree, dict[PatchModule, tuple[Step, ...]]] = WeakKeyDictionary()


def read_steps(module: PatchModule, tree: SourceTree) -> tuple[Step, ...]:
    """Return what `module` imports and assigns, in order; nothing if `tree` does not have it.

    Raises SourceError if its source does not parse.
    """
    known = _read.setdefault(tree, {})
    if module not in known:
        known[module] = _Reader(module, tree).read()
    return known[module]


class _Reader:
    def __init__(self, module: PatchModule, tree: SourceTree) -> None:
        self._module = module
        self._tree = tree
        self._steps: list[Step] = []
        self._blocks = 0

    def read(self) -> tuple[Step, ...]:
        parsed = self._tree.parse(self._module.name)
        if parsed is None:
            return ()
        scope = Scope()
        self._body(parsed.body, scope, _At("", (), (self._block(),)))
        for name in self._module.calls:
            self._follow(scope.get(name), [], _At(name, (), (self._block(),)))
        return tuple(self._steps)

    def _block(self, handlers: Sequence[ast.ExceptHandler] = ()) -> Block:
        self._blocks += 1
        caught = {
            name.id for handler in handlers for name in ast.walk(handler.type or handler) if isinstance(name, ast.Name)
        }
        everything = any(handler.type is None for handler in handlers) or bool(caught & {"Exception", "BaseException"})
        imports = bool(caught & {"ImportError", "ModuleNotFoundError"})
        return Block(self._blocks, catches_imports=imports, catches_all=everything)

    def _body(self, statements: Sequence[ast.stmt], scope: Scope, at: _At) -> _At | None:
        """Read statements; return where the one after them would be, or None if none is reached."""
        here: _At | None = at
        for statement in statements:
            if here is None:
                return None
            here = self._statement(statement, scope, here)
        return here

    def _statement(self, node: ast.stmt, scope: Scope, at: _At) -> _At | None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._import(node, scope, at)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scope[node.name] = Local(node, scope)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            if node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self._assign(targets, node.value, scope, at)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self._call(node.value, scope, at)
        elif isinstance(node, ast.If):
            return self._if(node, scope, at)
        elif isinstance(node, ast.Try):
            return self._try(node, scope, at)
        elif isinstance(node, ast.For | ast.While):
            self._loop(node, scope, at)
        elif isinstance(node, ast.With):
            return self._body(node.body, scope, at)
        elif isinstance(node, ast.Return | ast.Raise | ast.Continue | ast.Break):
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
                self._call(node.value, scope, at)
            return None
        return at

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope, at: _At) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self._note(StepKind.IMPORT, alias.name, "", node, at)
                top = alias.name if alias.asname else alias.name.partition(".")[0]
                scope[alias.asname or top] = Reference(top)
            return
        base = self._tree.imported_module(self._module.name, node)
        self._note(StepKind.IMPORT, base, "", node, at)
        for alias in (alias for alias in node.names if alias.name != "*"):
            self._note(StepKind.TAKE, f"{base}.{alias.name}", "", node, at)
            scope[alias.asname or alias.name] = Reference(f"{base}.{alias.name}")

    def _assign(self, targets: Sequence[ast.expr], value: ast.expr, scope: Scope, at: _At) -> None:
        if isinstance(value, ast.Call):
            self._call(value, scope, at)
        for target in targets:
            if isinstance(target, ast.Name):
                scope[target.id] = evaluate(value, scope)
            elif isinstance(target, ast.Attribute):
                self._assign_attribute(evaluate(target.value, scope), target.attr, value, at)
            elif isinstance(target, ast.Tuple | ast.List):
                values = value.elts if isinstance(value, ast.Tuple | ast.List) else [value] * len(target.elts)
                for inner, part in zip(target.elts, values, strict=False):
                    self._assign([inner], part, scope, at)

    def _assign_attribute(self, owner: Value | None, name: str, value: ast.expr, at: _At) -> None:
        if isinstance(owner, Reference):
            self._note(StepKind.ASSIGN, f"{owner.place}.{name}", ast.unparse(value), value, at)

    def _call(self, node: ast.Call, scope: Scope, at: _At) -> None:
        arguments = [evaluate(argument, scope) for argument in node.args]
        if isinstance(node.func, ast.Name) and node.func.id == "setattr" and len(node.args) == 3:
            name = arguments[1]
            if isinstance(name, Text):
                self._assign_attribute(arguments[0], name.text, node.args[2], at)
            return
        self._follow(evaluate(node.func, scope), arguments, at)

    def _follow(self, function: Value | None, arguments: Sequence[Value | None], at: _At) -> None:
        """Read what a call executes, if it is a function of this module, or of another one of the same upstream."""
        if isinstance(function, Local):
            self._enter(function, arguments, at)
        elif isinstance(function, Reference) and at.depth < _DEPTH:
            module, _, name = function.place.rpartition(".")
            if module.partition(".")[0] != self._module.name.partition(".")[0]:
                return
            parsed = self._tree.parse(module)
            if parsed is None:
                return
            # Only what the function does: the statements around it are read to know what its names stand for.
            there = _Reader(replace(self._module, name=module), self._tree)
            scope = Scope()
            deeper = replace(at, depth=at.depth + 1)
            there._body(parsed.body, scope, deeper)
            there._steps = self._steps
            there._follow(scope.get(name), arguments, deeper)

    def _enter(self, function: Local, arguments: Sequence[Value | None], at: _At) -> None:
        node = function.node
        if isinstance(node, ast.ClassDef) or at.depth >= _DEPTH:
            return
        inner = function.scope.new_child()
        for parameter, argument in zip(node.args.args, arguments, strict=False):
            inner[parameter.arg] = argument
        self._body(node.body, inner, replace(at, depth=at.depth + 1))

    def _if(self, node: ast.If, scope: Scope, at: _At) -> _At | None:
        ways: list[tuple[Scope, _At | None, Conditions]] = []
        for body, wanted in ((node.body, True), (node.orelse, False)):
            taken = conditions_of(node.test, scope, self._module.given, wanted)
            if taken is not None:
                branch = scope.copy()
                ways.append((branch, self._body(body, branch, at.under(taken)), taken))
        scope.update(merged([branch for branch, _, _ in ways]))
        reached = [taken for _, after, taken in ways if after is not None]
        if not reached:
            return None
        # If one of two ways ends here, what follows depends on the other.
        only = reached[0] if len(reached) == 1 and len(ways) == 2 else None
        return at if only is None else at.under(only)

    def _try(self, node: ast.Try, scope: Scope, at: _At) -> _At | None:
        body = scope.copy()
        inside = replace(at, blocks=(*at.blocks, self._block(node.handlers)))
        after = self._body([*node.body, *node.orelse], body, inside)
        scopes = [body]
        for handler in node.handlers:
            caught = scope.copy()
            what = ast.unparse(handler.type) if handler.type is not None else "an error"
            self._body(handler.body, caught, at.under((Condition(f"{what} is raised"),)))
            scopes.append(caught)
        scope.update(merged(scopes))
        if self._body(node.finalbody, scope, at) is None:
            return None
        return None if after is None and not node.handlers else at

    def _loop(self, node: ast.For | ast.While, scope: Scope, at: _At) -> None:
        if isinstance(node, ast.While):
            self._body(node.body, scope, at.under((Condition(ast.unparse(node.test)),)))
            return
        items = evaluate(node.iter, scope)
        if not isinstance(items, Table):
            if _calls_one_of_its_items(node):
                self._note(StepKind.UNREAD, ast.unparse(node.iter), "", node, at)
            self._body(node.body, scope, at.under((Condition(f"{ast.unparse(node.iter)} is not empty"),)))
            return
        for item in items.values:
            _bind(node.target, item, scope)
            self._body(node.body, scope, at)

    def _note(self, kind: StepKind, place: str, value: str, node: ast.stmt | ast.expr, at: _At) -> None:
        conditions = tuple(dict.fromkeys(at.conditions))
        self._steps.append(Step(kind, place, value, at.call, node.lineno, conditions, at.blocks))


def _calls_one_of_its_items(loop: ast.For) -> bool:
    names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    calls = (node.func for statement in loop.body for node in ast.walk(statement) if isinstance(node, ast.Call))
    return any(isinstance(function, ast.Name) and function.id in names for function in calls)


def _bind(target: ast.expr, value: Value | None, scope: Scope) -> None:
    if isinstance(target, ast.Name):
        scope[target.id] = value
    elif isinstance(target, ast.Tuple | ast.List):
        parts = value.values if isinstance(value, Table) else (None,) * len(target.elts)
        for inner, part in zip(target.elts, parts, strict=False):
            _bind(inner, part, scope)
