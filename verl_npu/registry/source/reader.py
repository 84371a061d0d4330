"""The reader of upstream's code. It finds out what a definition does, and what the import of a module does.

Nothing is imported or executed. The reader follows the order of execution, and only code that can run counts. It skips
branches that are never taken, blocks for type checkers, and statements after a `return`. If the source leaves
something open, the answer is unknown.

`read_body` reads a definition and the functions of its module that it calls. `read_import` reads a module as its
import executes it: which object each name is bound to in the end, and which names in other packages are assigned.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from .definition import (
    BLOCKS,
    NAMED,
    Function,
    bound_names,
    decoration,
    fingerprint,
    function_kind,
    is_log,
    meaning_fingerprint,
)
from .named import Key, Origins, PatchModule, Value
from .tree import SourceTree, Target, is_there, unparsable

# How deep calls between functions, and names of values, are followed.
_DEPTH = 4
_MOST_FUNCTIONS = 100

_UNKNOWN: Origins = frozenset({None})

Written = tuple[ast.AST, "Scope"]
"""An expression and its scope. Its value is looked up only when it is needed."""


# Facts.


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A call in the code."""

    function: str
    """The function that is called. If it is imported, its full dotted name, otherwise the text in the source."""
    given: tuple[Written, ...]
    """The positional arguments."""
    keywords: Mapping[str, Written]
    is_open: bool
    """Whether the call also passes keywords that the source does not show, as with `**kwargs`."""
    conditions: tuple[Written, ...]
    """The conditions of the call."""
    is_direct: bool
    """Whether the definition itself makes the call, and not a function that it calls."""


@dataclass(frozen=True, slots=True, eq=False)
class Refusal:
    """A `raise` or an `assert` in the code."""

    exception: str
    conditions: tuple[Written, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """One statement that binds or unbinds a name in the module or in one of the module's classes."""

    path: str
    """The name within the module. A star stands for all names of its module or class."""
    how: str | Function | ast.expr
    """What the name is bound to: a description, or the function or value itself, which is described only when
    needed."""
    outside: bool = False
    """Whether the name is bound by code outside of the class or module that has it."""

    @property
    def text(self) -> str:
        """A description of the object that the name is bound to."""
        if isinstance(self.how, Function):
            return " ".join([function_kind(self.how), *map(decoration, self.how.decorator_list)])
        text = self.how if isinstance(self.how, str) else f"assigned {meaning_fingerprint([self.how])[:8]}"
        return f"{text} from outside" if self.outside else text

    def concerns(self, path: str) -> bool:
        """Return whether this statement binds `path`. A statement whose own path is `X.*` binds every direct member of
        `X`."""
        owner = self.path.removesuffix("*")
        return self.path == path or (owner != self.path and path.rpartition(".")[0] == owner.removesuffix("."))


@dataclass(frozen=True, slots=True)
class Block:
    """The body of a `try` statement, a module, or a function. An error ends the innermost `try` block that catches the
    error. If no block catches the error, it ends the module or the function."""

    number: int
    catches: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Step:
    """One import, or one assignment to a name in another package. Steps are in the order of execution."""

    place: str
    """The name that is imported or assigned. It has only dots, because this source does not show where its module's
    name ends."""
    value: str
    """The source of the value that is assigned. Empty for an import."""
    is_module: bool
    """Whether the import is of a module, and not of a name in a module."""
    call: str
    """The function that must be called for this step to run. Empty if importing the module is enough."""
    line: int
    conditions: tuple[str, ...]
    """The conditions of the step that the source leaves open."""
    blocks: tuple[Block, ...]


@dataclass(slots=True)
class Facts:
    """Facts about a piece of code."""

    calls: list[Call] = field(default_factory=list)
    passed: dict[str, list[Written]] = field(default_factory=dict)
    """The values of each keyword argument and of each key in a dictionary, by the name of the keyword or key."""
    defaults: dict[str, Written] = field(default_factory=dict)
    """The parameters of the definition, each with its default."""
    imports: set[str] = field(default_factory=set)
    """The full names of the modules, and of the names in modules, that the code imports."""
    reads: set[str] = field(default_factory=set)
    """The names, attributes, and strings that the code reads."""
    sets: set[str] = field(default_factory=set)
    """The dotted names of the attributes of other objects that the code assigns."""
    refusals: list[Refusal] = field(default_factory=list)
    parts: list[ast.AST] = field(default_factory=list)
    """All definitions and constants that were read for these facts."""
    marks: list[Mark] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    """Tables whose elements are called although they come from elsewhere, so that the effect of the calls is
    unknown."""

    @property
    def form(self) -> str:
        """A hash of all code that was read, in normalized form. Differences in formatting or comments do not change
        the hash."""
        return fingerprint(self.parts)

    def ends(self, qualname: str) -> tuple[str, ...]:
        """Return descriptions of the objects that the name `qualname` may refer to after its module has been imported.
        If `qualname` is inside a class, also describe that class, unless its only definition is a class statement."""
        parts = qualname.split(".")
        found: list[str] = []
        for length in range(1, len(parts) + 1):
            path = ".".join(parts[:length])
            texts = list(self._texts(path))
            if length == len(parts):
                # Two definitions of one kind, under an `if` and its `else`, are called in the same way.
                found += dict.fromkeys(texts)
            elif texts != ["class"]:
                found += [f"in {path}: {text}" for text in texts]
        return tuple(found)

    def _texts(self, path: str) -> Iterator[str]:
        made = False
        for mark in self.marks:
            if mark.concerns(path) and (made or not mark.path.endswith("*")):
                # Changes to all names have no effect on a name that is bound later.
                made = True
                yield mark.text


# Queries.


def read_body(subject: str, tree: SourceTree) -> Facts:
    """Read the code of a target, or of a whole module. If the subject does not exist, return empty facts. Raises
    SourceError if a module cannot be parsed."""
    return tree.recall(("body", subject), partial(_read_body, subject, tree))


def _read_body(subject: str, tree: SourceTree) -> Facts:
    facts = Facts()
    module, _, qualname = subject.partition(":")
    if not qualname:
        parsed = tree.parse(module)
        if parsed is not None:
            facts.parts.append(parsed)
            reader = Reader(module, tree, facts)
            reader.block(parsed.body, Scope(reader), _At(everything=True))
        return facts
    for target in tree.chain(Target.parse(subject)):
        reader = Reader(target.module, tree, facts)
        for node in tree.nodes(target):
            if isinstance(node, Function):
                facts.defaults.update(_defaults(node, Scope(reader)))
                reader.enter(node, target.owner, {})
            else:
                facts.parts.append(node)
                inner = isinstance(node, ast.ClassDef)
                owner = target.qualname if inner else target.owner
                statements = node.body if isinstance(node, ast.ClassDef) else [node]
                reader.block(statements, Scope(reader, owner), _At(everything=inner))
    return facts


def read_import(module: str, tree: SourceTree) -> Facts:
    """Read how the import of a module changes the module's names and other packages. Raises SourceError if the module
    cannot be parsed."""
    return tree.recall(("import", module), lambda: _read_import(PatchModule(module), tree, beyond=False))


def read_patches(module: PatchModule, tree: SourceTree) -> Facts:
    """Read how a module changes its names and other packages when it is imported, and when the functions in its
    `calls` are called. Raises SourceError if the module cannot be parsed."""
    return tree.recall(("import", module), lambda: _read_import(module, tree, beyond=True))


def _read_import(module: PatchModule, tree: SourceTree, *, beyond: bool) -> Facts:
    parsed = tree.parse(module.name)
    reader = Reader(module.name, tree, Facts(), module.given, importing=True, beyond=beyond)
    if parsed is not None:
        reader.block(parsed.body, Scope(reader), _At(blocks=(reader.new_block(),)))
        for name in module.calls:
            at = _At(call=name, blocks=(reader.new_block(),))
            for node in tree.nodes(Target(module.name, name)):
                if isinstance(node, Function):
                    reader.enter(node, "", {}, at=at)
    return reader.facts


def ends_of(target: Target, tree: SourceTree) -> tuple[str, ...]:
    """Return descriptions of the objects that a name may refer to after its module is imported. Raises SourceError if
    a module cannot be parsed."""
    key = ("ends", tree.read(target.module), target.qualname)
    try:
        return tree.memory.recall(key, lambda: read_import(target.module, tree).ends(target.qualname))
    except RecursionError as error:
        raise unparsable(target.module, error) from error


def is_hollow(subject: str, tree: SourceTree) -> bool:
    """Return whether a definition does nothing: its body only passes, raises an error, or returns a constant."""
    if ":" not in subject:
        parsed = tree.parse(subject)
        return parsed is not None and not bound_names(parsed.body)
    nodes = [node for node in tree.meaning(Target.parse(subject)) if isinstance(node, NAMED)]
    return bool(nodes) and all(_does_nothing(node.body) for node in nodes)


def origins_of(written: Written) -> Origins:
    """Return the constants and settings that the value of an expression may come from."""
    node, scope = written
    return scope.reader.origins(node, scope)


def names_in(conditions: Iterable[Written]) -> frozenset[str]:
    """Return the names that the conditions use, directly or through local variables."""
    found: set[str] = set()
    waiting = [(node, scope, 0) for node, scope in conditions]
    while waiting:
        one, scope, depth = waiting.pop()
        for part in ast.walk(one):
            if isinstance(part, ast.Name):
                found.add(part.id)
                if depth < _DEPTH:
                    waiting += [(value, scope, depth + 1) for value in scope.assigned.get(part.id, ())]
            elif isinstance(part, ast.Attribute):
                found.add(part.attr)
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                found.add(part.value)
    return frozenset(found)


def read_imports(module: str, tree: SourceTree) -> frozenset[str]:
    """Return the full names of everything that a module imports, anywhere in its code. Raises SourceError if the
    module cannot be parsed."""
    data = tree.read(module)
    parsed = tree.parse(module)
    if data is None or parsed is None:
        return frozenset()
    if imports_by_name(module, tree):
        return frozenset(read_body(module, tree).imports)
    found = tree.memory.recall(("imports", data), lambda: tuple(_live_imports(parsed.body)))
    return frozenset(name for node in found for name in _imported_names(node, module, tree))


def imports_by_name(module: str, tree: SourceTree) -> bool:
    """Return whether a module may import something without an import statement."""
    data = tree.read(module) or b""
    return b"import_module" in data or b"__import__" in data


def importer(subject: str, packages: Sequence[str], tree: SourceTree) -> str | None:
    """Return a module in these packages that still imports the missing `subject` or its former module, or None if no
    module does."""
    module, _, qualname = subject.partition(":")
    first = qualname.partition(".")[0]
    if tree.read(module) is not None:
        if is_there(f"{module}:{first}", tree):
            return None
        if first in read_body(module, tree).reads:
            return module
        module = f"{module}.{first}"
    for other in tree.modules_with(packages, [module.rpartition(".")[2]]):
        if any(name == module or name.startswith(f"{module}.") for name in read_imports(other, tree)):
            return other
    return None


def is_true(test: ast.expr, constants: Mapping[str, object] | None = None) -> bool | None:
    """Return True if a condition always holds in a process that imports the module, False if the condition never
    holds, or None if the source does not show this.

    `constants` maps names to known values. For a function, the value is the function's result.
    """
    known = constants or {}
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if isinstance(test, ast.Call) and not test.args and not test.keywords:
        test = test.func
        known = {name: value for name, value in known.items() if value is True}
    if isinstance(test, ast.Name | ast.Attribute):
        name = test.id if isinstance(test, ast.Name) else test.attr
        if name == "TYPE_CHECKING":
            return False
        return bool(known[name]) if name in known else None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = is_true(test.operand, constants)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        answers = [is_true(value, constants) for value in test.values]
        decisive = isinstance(test.op, ast.Or)
        return decisive if decisive in answers else None if None in answers else not decisive
    if isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__":
        return False if fingerprint([test]) == _MAIN_TEST else None
    return None


_MAIN_TEST = fingerprint([ast.parse('__name__ == "__main__"', mode="eval").body])


# Reading.


@dataclass(slots=True, eq=False)
class Scope:
    """The names that are visible to a piece of code."""

    reader: Reader
    owner: str = ""
    """The class that contains the code. Empty if no class contains it."""
    parameters: Mapping[str, Written] = field(default_factory=dict)
    assigned: Mapping[str, Sequence[ast.AST]] = field(default_factory=dict)
    """For each local name, the values that are assigned to it, in any order. A statement stands for an unknown
    value."""
    shared: frozenset[str] | None = None
    """In a function, the names that it declares global. None for code whose names all belong to the module or
    class."""
    depth: int = 0

    def path(self, name: str) -> str | None:
        """Return the qualified name in the module of a name that the code binds, such as `Class.name`, or None if the
        name is local to a function."""
        if self.shared is not None:
            return name if name in self.shared else None
        return _within(self.owner, name)


@dataclass(frozen=True, slots=True)
class _At:
    """The path that leads to the code: conditions, the called function, and enclosing blocks."""

    conditions: tuple[Written, ...] = ()
    denied: tuple[Written, ...] = ()
    """Those of the conditions that must be false."""
    everything: bool = False
    """Whether functions that are only defined count as called."""
    call: str = ""
    blocks: tuple[Block, ...] = ()

    def under(self, test: Written, *, holds: bool = True) -> _At:
        denied = self.denied if holds else (*self.denied, test)
        return replace(self, conditions=(*self.conditions, test), denied=denied)

    def texts(self) -> tuple[str, ...]:
        """Return the conditions as they are written in the source."""
        return tuple(
            dict.fromkeys(
                _denied(test[0]) if test in self.denied else ast.unparse(test[0]) for test in self.conditions
            )
        )


def _denied(test: ast.AST) -> str:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return ast.unparse(test.operand)
    return f"not ({ast.unparse(test)})"


class Reader:
    """A reader of one module's code that collects facts about it."""

    def __init__(
        self,
        module: str,
        tree: SourceTree,
        facts: Facts | None = None,
        given: Collection[str] = (),
        *,
        importing: bool = False,
        beyond: bool = False,
    ) -> None:
        """Prepare to read a module.

        Args:
            given: names whose values are true.
            importing: count a function only if the import calls it.
            beyond: also count functions of other modules in the same package.
        """
        self.facts = Facts() if facts is None else facts
        self.module = module
        self.tree = tree
        self._given = given
        self._importing = importing
        self._beyond = beyond
        self._entered: set[tuple[object, ...]] = set()
        self._noted: set[ast.AST] = set()
        self._constants: dict[str, object] | None = None
        self._attributes: dict[str, dict[str, list[ast.expr]]] = {}
        self._followed: set[str] = set()
        self._blocks = 0
        parsed = tree.parse(module)
        self._body = parsed.body if parsed is not None else []
        data = tree.read(module)
        self._bound = tree.memory.recall(("bound", data), lambda: frozenset(bound_names(self._body)))

    def new_block(self, handlers: Sequence[ast.ExceptHandler] = ()) -> Block:
        """Return a new block. If it is a `try`, `handlers` are its handlers."""
        self._blocks += 1
        return Block(self._blocks, frozenset().union(*(_exceptions(handler.type) for handler in handlers)))

    # Statements.

    def enter(
        self, node: Function, owner: str, given: Mapping[str, Written], depth: int = 0, at: _At | None = None
    ) -> None:
        """Read the body of a function that is called with the given arguments."""
        known = tuple(sorted((name, origins_of(written)) for name, written in given.items()))
        key = (node, at.call if at is not None else "", *known)
        if key in self._entered or len(self._entered) > _MOST_FUNCTIONS:
            return
        self._entered.add(key)
        self._note(node)
        scope = replace(self.scope_of(node, owner), depth=depth)
        scope.parameters = {**scope.parameters, **given}
        self.block(node.body, scope, replace(at or _At(), everything=False))

    def scope_of(self, node: Function, owner: str) -> Scope:
        """Return the scope of a function's code."""
        shared = (name for part in ast.walk(node) if isinstance(part, ast.Global) for name in part.names)
        return Scope(self, owner, _defaults(node, Scope(self)), _assigned(node), frozenset(shared))

    def _note(self, node: ast.AST) -> None:
        if node not in self._noted:
            self._noted.add(node)
            self.facts.parts.append(node)

    def block(self, statements: Sequence[ast.stmt], scope: Scope, at: _At) -> None:
        """Read statements in order. Stop at a statement that ends the block."""
        for statement in statements:
            self._statement(statement, scope, at)
            if ends_block(statement):
                return
            if self._importing and isinstance(statement, ast.If) and any(map(ends_block, statement.body)):
                # The following statements depend on it, unless the result is known.
                known = is_true(statement.test, self._known_constants()) is not None
                at = at if known else at.under((statement.test, scope), holds=False)

    def _statement(self, node: ast.stmt, scope: Scope, at: _At) -> None:
        match node:
            case ast.Import() | ast.ImportFrom():
                self._import(node, scope, at)
            case ast.ClassDef():
                self._class(node, scope, at)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node, scope, at)
            case ast.If():
                self._if(node, scope, at)
            case ast.Raise():
                self._refuse(node.exc, scope, at)
            case ast.Assert():
                self.facts.refusals.append(Refusal("AssertionError", (*at.conditions, (node.test, scope))))
            case ast.Try():
                self._try(node, scope, at)
            case ast.While():
                self._while(node, scope, at)
            case ast.For() | ast.AsyncFor():
                self._for(node, scope, at)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._expression(item.context_expr, scope, at)
                    if item.optional_vars is not None:
                        self._target(item.optional_vars, "bound by a with", scope)
                self.block(node.body, scope, at)
            case ast.Match():
                self._match(node, scope, at)
            case ast.Delete():
                for target in node.targets:
                    self._target(target, "deleted", scope)
            case ast.Expr(value=ast.Constant()):
                pass
            case _:
                self._simple(node, scope, at)

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope, at: _At) -> None:
        names = _imported_names(node, self.module, self.tree)
        self.facts.imports.update(names)
        self._step(names[0], "", node, at, is_module=True)
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                self._bind(scope.path(name), f"module {alias.name if alias.asname else name}")
            return
        # The origin of a name within a package may change although the name stays the same.
        package = "its own package" if node.level else (node.module or "").partition(".")[0]
        for alias in node.names:
            if alias.name == "*":
                self._bind(_within(scope.owner, "*"), f"all names of {'.' * node.level}{node.module or ''}")
            else:
                self._step(f"{names[0]}.{alias.name}", "", node, at)
                self._bind(scope.path(alias.asname or alias.name), f"{alias.name} from {package}")

    def _class(self, node: ast.ClassDef, scope: Scope, at: _At) -> None:
        path = scope.path(node.name)
        kept = (decoration(decorator) for decorator in node.decorator_list)
        changed = [text for text in kept if text.removeprefix("@").partition("(")[0] not in _NEUTRAL_DECORATORS]
        self._bind(path, " ".join(["class", *changed]))
        if at.everything or (self._importing and path is not None):
            self.block(node.body, Scope(self, _within(scope.owner, node.name), depth=scope.depth), at)

    def _function(self, node: Function, scope: Scope, at: _At) -> None:
        self._bind(scope.path(node.name), node)
        if self._importing:
            if not scope.owner and scope.shared is None and node.decorator_list:
                # A decorator may call the function.
                self.enter(node, "", {}, scope.depth + 1, at)
            for expression in [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]:
                self._expression(expression, scope, at)
        elif at.everything or node.name in scope.assigned:
            # A function inside another one counts if it is used there.
            inner = replace(scope, parameters={**scope.parameters, **_defaults(node, scope)})
            inner.assigned, inner.shared = {**scope.assigned, **_assigned(node)}, frozenset()
            self._note(node)
            self.block(node.body, inner, replace(at, everything=False))

    def _if(self, node: ast.If, scope: Scope, at: _At) -> None:
        test = (node.test, scope)
        holds = is_true(node.test, self._known_constants())
        # For an import, only conditions that depend on the process matter.
        depends = holds is None or not self._importing
        taken, other = (at.under(test), at.under(test, holds=False)) if depends else (at, at)
        if holds is None and _refuses(node.body):
            # A check that only raises an error does not show that the feature is supported.
            for inner in node.body:
                if isinstance(inner, ast.Raise):
                    self._refuse(inner.exc, scope, taken)
        elif holds is not False:
            self._expression(node.test, scope, at)
            self.block(node.body, scope, taken)
        if holds is not True:
            self.block(node.orelse, scope, other)

    def _try(self, node: ast.Try, scope: Scope, at: _At) -> None:
        inside = replace(at, blocks=(*at.blocks, self.new_block(node.handlers)))
        self.block(node.body, scope, inside)
        for handler in node.handlers:
            if handler.type is not None:
                self._expression(handler.type, scope, at)
            if handler.name is not None:
                self._bind(scope.path(handler.name), "bound by an except")
            raised = ast.Name(f"{ast.unparse(handler.type) if handler.type is not None else 'an error'} is raised")
            self.block(handler.body, scope, at.under((raised, scope)) if self._importing else at)
        self.block(node.orelse, scope, inside)
        self.block(node.finalbody, scope, at)

    def _while(self, node: ast.While, scope: Scope, at: _At) -> None:
        if is_true(node.test, self._known_constants()) is not False:
            self._expression(node.test, scope, at)
            self.block(node.body, scope, at.under((node.test, scope)) if self._importing else at)
        self.block(node.orelse, scope, at)

    def _for(self, node: ast.For | ast.AsyncFor, scope: Scope, at: _At) -> None:
        self._expression(node.iter, scope, at)
        self._target(node.target, "bound by a for", scope)
        items = self._items(node.iter, scope) if self._importing else None
        if items is not None:
            # Read each iteration by itself, because its assignments depend on the element.
            for item in items:
                turn = replace(scope, assigned={**scope.assigned, **_bound_to(node.target, item)})
                self.block(node.body, turn, at)
        else:
            if self._importing and _calls_one_of_its_items(node):
                self.facts.unread.append(ast.unparse(node.iter))
            filled = ast.Name(f"{ast.unparse(node.iter)} is not empty") if self._importing else None
            self.block(node.body, scope, at if filled is None else at.under((filled, scope)))
        self.block(node.orelse, scope, at)

    def _match(self, node: ast.Match, scope: Scope, at: _At) -> None:
        self._expression(node.subject, scope, at)
        for case in node.cases:
            for part in ast.walk(case.pattern):
                name = getattr(part, "name", None) or getattr(part, "rest", None)
                if isinstance(part, ast.MatchAs | ast.MatchStar | ast.MatchMapping) and name:
                    self._bind(scope.path(name), "bound by a match")
            self.block(case.body, scope, at)

    def _simple(self, node: ast.stmt, scope: Scope, at: _At) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets = [node.target]
        for child in ast.iter_child_nodes(node):
            # An annotation does not use the names in it.
            if isinstance(child, ast.expr) and child not in targets and child is not getattr(node, "annotation", None):
                self._expression(child, scope, at)
        value = getattr(node, "value", None)
        for target in targets:
            for part in ast.walk(target):
                if isinstance(part, ast.Name | ast.Attribute) and isinstance(part.ctx, ast.Load):
                    self.facts.reads.add(part.id if isinstance(part, ast.Name) else part.attr)
                elif isinstance(part, ast.Attribute | ast.Subscript) and isinstance(part.ctx, ast.Store):
                    self._place_set(part, value, scope, at)
            if value is not None:
                self._target(target, value, scope)

    def _place_set(self, target: ast.Attribute | ast.Subscript, value: ast.expr | None, scope: Scope, at: _At) -> None:
        if isinstance(target, ast.Attribute):
            self.facts.sets.add(self.dotted(target, scope))
            if value is not None:
                self._assigned_elsewhere(target.value, target.attr, value, scope, at)
        elif value is not None and isinstance(target.slice, ast.Constant) and isinstance(target.slice.value, str):
            self.facts.passed.setdefault(target.slice.value, []).append((value, scope))

    def _refuse(self, raised: ast.expr | None, scope: Scope, at: _At) -> None:
        function = raised.func if isinstance(raised, ast.Call) else raised
        name = self.dotted(function, scope) if function is not None else ""
        self.facts.refusals.append(Refusal(name, at.conditions))

    # Bindings of the module's names.

    def _bind(self, path: str | None, how: str | Function | ast.expr, *, outside: bool = False) -> None:
        if path is not None and self._importing:
            self.facts.marks.append(Mark(path, how, outside))

    def _target(self, target: ast.expr, how: str | ast.expr, scope: Scope) -> None:
        match target:
            case ast.Name(id=name):
                self._bind(scope.path(name), how)
            case ast.Starred(value=inner):
                self._target(inner, how, scope)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self._target(part, how, scope)
            case ast.Attribute(value=value, attr=name):
                owner = self._place(value)
                if owner is not None:
                    self._bind(_within(owner, name), how, outside=True)
            case ast.Subscript(value=value, slice=key):
                if _is_this_module(target):
                    self._bind("*", "another module in place of this one")
                owner = self._namespace(value, scope)
                if owner is not None:
                    self._bind(_within(owner, _word(key)), how, outside=True)

    def _binds_by_call(self, node: ast.Call, scope: Scope) -> None:
        """Record the names of the module that a call binds: through `setattr`, `exec`, or a change to a namespace."""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in ("setattr", "delattr", "__setattr__", "__delattr__") and len(node.args) >= 2:
            owner = self._place(node.args[0])
            if owner is not None:
                self._bind(_within(owner, _word(node.args[1])), f"set from outside by {name}")
        elif name in ("exec", "eval") and isinstance(node.func, ast.Name):
            self._bind("*", f"whatever {name} does")
        elif isinstance(node.func, ast.Attribute):
            owner = self._namespace(node.func.value, scope)
            if owner is not None and name not in ("get", "items", "keys", "values", "copy", "__getitem__"):
                for word in _words_given(node):
                    self._bind(_within(owner, word), f"changed from outside by {name}")

    def _place(self, node: ast.expr, depth: int = 0) -> str | None:
        """Return the class of this module that an expression refers to, or an empty string for the module itself.
        Return None for anything else."""
        if _is_this_module(node):
            return ""
        if depth > _DEPTH:
            return None
        path = None
        if isinstance(node, ast.Name):
            path = node.id
            for other in self._nodes(node.id):
                if isinstance(other, ast.Assign | ast.AnnAssign) and other.value is not None:
                    return self._place(other.value, depth + 1)
        elif isinstance(node, ast.Attribute):
            owner = self._place(node.value, depth + 1)
            path = None if owner is None else _within(owner, node.attr)
        return path if path and any(isinstance(one, ast.ClassDef) for one in self._nodes(path)) else None

    def _namespace(self, node: ast.expr, scope: Scope) -> str | None:
        """Return the owner of the namespace that an expression refers to: `globals()`, `vars(Class)`, or
        `Class.__dict__`."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "globals" or (node.func.id in ("vars", "locals") and not node.args):
                inner = node.func.id != "globals" and (scope.owner or scope.shared is not None)
                return None if inner else ""
            if node.func.id == "vars" and len(node.args) == 1:
                return self._place(node.args[0])
        return self._place(node.value) if isinstance(node, ast.Attribute) and node.attr == "__dict__" else None

    # Assignments in other packages.

    def _step(self, place: str, value: str, node: ast.stmt | ast.expr, at: _At, *, is_module: bool = False) -> None:
        if self._importing:
            self.facts.steps.append(Step(place, value, is_module, at.call, node.lineno, at.texts(), at.blocks))

    def _assigned_elsewhere(self, owner: ast.expr, name: str, value: ast.expr, scope: Scope, at: _At) -> None:
        place, is_imported = self._named(owner, scope) if self._importing else ("", False)
        if is_imported:
            self._step(f"{place}.{name}", ast.unparse(value), value, at)

    def _items(self, node: ast.expr, scope: Scope) -> list[ast.expr] | None:
        """Return the elements of a literal list, tuple, or set, the pairs of a literal dictionary, or None for other
        values."""
        view = ""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
            view = node.func.attr
            node = node.func.value
        if isinstance(node, ast.Name):
            local = scope.assigned.get(node.id) or [
                one.value for one in self._nodes(node.id) if isinstance(one, ast.Assign | ast.AnnAssign) and one.value
            ]
            given = scope.parameters.get(node.id)
            if not local and given is not None:
                return self._items(given[0], given[1]) if isinstance(given[0], ast.expr) else None
            if len(local) != 1 or not isinstance(local[0], ast.expr):
                return None
            node = local[0]
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return list(node.elts)
        if not isinstance(node, ast.Dict):
            return None
        pairs = [(key, value) for key, value in zip(node.keys, node.values, strict=True) if key is not None]
        if view in ("values", "keys"):
            return [value if view == "values" else key for key, value in pairs]
        return [ast.Tuple([key, value], ast.Load()) for key, value in pairs]

    # Expressions.

    def _expression(self, node: ast.expr, scope: Scope, at: _At) -> None:
        waiting: list[tuple[ast.AST, _At]] = [(node, at)]
        while waiting:
            one, at = waiting.pop()
            if isinstance(one, ast.Call) and is_log(one):
                continue
            if isinstance(one, ast.Lambda) and self._importing:
                continue
            if isinstance(one, ast.IfExp):
                holds = is_true(one.test, self._known_constants())
                under = at.under((one.test, scope))
                waiting += [(one.test, at)] if holds is None else []
                waiting += [(one.body, under)] if holds is not False else []
                waiting += [(one.orelse, under)] if holds is not True else []
                continue
            match one:
                case ast.NamedExpr():
                    self._target(one.target, "bound by :=", scope)
                case ast.Call():
                    self._call(one, scope, at)
                case ast.Dict():
                    for key, value in zip(one.keys, one.values, strict=True):
                        if isinstance(key, ast.Constant) and isinstance(key.value, str):
                            self.facts.passed.setdefault(key.value, []).append((value, scope))
                case ast.Name(id=name, ctx=ast.Load()):
                    self.facts.reads.add(name)
                    self._follow_constant(name, scope)
                case ast.Attribute(attr=name, ctx=ast.Load()):
                    self.facts.reads.add(name)
                case ast.Constant(value=str(text)):
                    self.facts.reads.add(text)
            waiting += [(child, at) for child in ast.iter_child_nodes(one)]

    def _call(self, node: ast.Call, scope: Scope, at: _At) -> None:
        function = self.dotted(node.func, scope)
        keywords = {one.arg: (one.value, scope) for one in node.keywords if one.arg is not None}
        for name, written in keywords.items():
            self.facts.passed.setdefault(name, []).append(written)
        self.facts.calls.append(
            Call(
                function=function,
                given=tuple((argument, scope) for argument in node.args),
                keywords=keywords,
                is_open=len(keywords) < len(node.keywords),
                conditions=at.conditions,
                is_direct=not scope.depth,
            )
        )
        last = function.rpartition(".")[2]
        if last in ("import_module", "__import__") and node.args:
            self.facts.imports |= set(self._texts(node.args[0], scope))
        if last == "setattr" and len(node.args) == 3:
            for name in self._texts(node.args[1], scope):
                self._assigned_elsewhere(node.args[0], name, node.args[2], scope, at)
        if self._importing:
            self._binds_by_call(node, scope)
        self._follow(node.func, node, scope, at)

    def _follow(self, function: ast.expr, call: ast.Call, scope: Scope, at: _At) -> None:
        """Read a function that is called, if it is in the same module or class. With `beyond`, it may be in another
        module of the package."""
        if scope.depth >= _DEPTH:
            return
        # Only for an import do the conditions of the call matter.
        at = at if self._importing else _At()
        for node, owner in self._functions(function, scope):
            self.enter(node, owner, _call_arguments(node, call, bool(owner), scope), scope.depth + 1, at)
        name, is_imported = self._named(function, scope) if self._beyond else ("", False)
        module, _, rest = name.rpartition(".")
        if is_imported and module.partition(".")[0] == self.module.partition(".")[0]:
            for one in self.tree.nodes(Target(module, rest)) if self.tree.read(module) is not None else ():
                if isinstance(one, Function):
                    facts = Facts(steps=self.facts.steps)
                    there = Reader(module, self.tree, facts, self._given, importing=True, beyond=True)
                    there.enter(one, "", _call_arguments(one, call, False, scope), scope.depth + 1, at)

    def _functions(self, function: ast.expr, scope: Scope) -> Iterator[tuple[Function, str]]:
        if isinstance(function, ast.Name):
            local = scope.assigned.get(function.id, ())
            if self._importing and local:
                named = (one for one in local if isinstance(one, ast.Name) and one.id != function.id)
                yield from ((one, "") for one in local if isinstance(one, Function))
                for one in named:
                    yield from self._functions(one, scope)
            elif function.id in self._bound and not local:
                yield from ((node, "") for node in self._nodes(function.id) if isinstance(node, Function))
        elif isinstance(function, ast.Attribute):
            base = ast.unparse(function.value)
            owner = scope.owner if base in ("self", "cls", "super()") else base
            if owner.partition(".")[0] in self._bound:
                yield from self._methods(owner, function.attr, 0, beyond=base == "super()")

    def _methods(self, owner: str, name: str, depth: int, *, beyond: bool = False) -> Iterator[tuple[Function, str]]:
        """Yield the method of a class. If the class does not have it, yield that of its first base in this module that
        does."""
        found = [] if beyond else [node for node in self._nodes(f"{owner}.{name}") if isinstance(node, Function)]
        if found:
            yield from ((node, owner) for node in found)
            return
        classes = [node for node in self._nodes(owner) if isinstance(node, ast.ClassDef)]
        for base in (base for node in classes for base in node.bases if isinstance(base, ast.Name)):
            if depth < _DEPTH and base.id != owner:
                yield from self._methods(base.id, name, depth + 1)

    def _nodes(self, path: str) -> list[ast.stmt]:
        return self.tree.nodes(Target(self.module, path)) if path else []

    # Origins of values.

    def origins(self, node: ast.AST, scope: Scope, depth: int = 0) -> Origins:
        """Return the constants and settings that the value of an expression may come from."""
        if depth > 2 * _DEPTH:
            return _UNKNOWN
        also = partial(self.origins, scope=scope, depth=depth + 1)
        match node:
            case ast.Constant(value=value):
                return frozenset({Value(value)})
            case ast.Name(id=name):
                return self._origins_of_name(name, scope, depth)
            case ast.IfExp(body=one, orelse=other):
                return also(one) | also(other)
            case ast.BoolOp(values=values):
                return frozenset().union(*map(also, values))
            case ast.JoinedStr() | ast.BinOp():
                return self._joined_text(node, scope, depth)
            case ast.Subscript(slice=ast.Constant(value=key)):
                return frozenset({Key(str(key))})
            case ast.Attribute(attr=name):
                return self._origins_of_attribute(node, scope, depth) or frozenset({Key(name)})
            case ast.Call(func=function, args=arguments):
                name = function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)
                arguments = arguments[1:] if name == "getattr" else arguments
                if name in ("get", "pop", "getattr") and arguments:
                    keys = (one.constant for one in also(arguments[0]) if isinstance(one, Value))
                    others = [*arguments[1:], *(keyword.value for keyword in node.keywords)]
                    return frozenset(Key(str(key)) for key in keys).union(*map(also, others))
        return _UNKNOWN

    def _origins_of_name(self, name: str, scope: Scope, depth: int) -> Origins:
        values = [(value, scope) for value in scope.assigned.get(name, ())]
        if name in scope.parameters:
            values.append(scope.parameters[name])
        if values:
            return frozenset().union(*(s.reader.origins(value, s, depth + 1) for value, s in values)) or _UNKNOWN
        found = self._constant(Target(self.module, name), depth) if name in self._bound else frozenset()
        return found or _UNKNOWN

    def _origins_of_attribute(self, node: ast.Attribute, scope: Scope, depth: int) -> Origins:
        base = ast.unparse(node.value)
        owner = scope.owner if base in ("self", "cls", "type(self)", "self.__class__") else base
        if owner.partition(".")[0] not in self._bound:
            return frozenset()
        found = self._constant(Target(self.module, f"{owner}.{node.attr}"), depth)
        if owner == scope.owner:
            inner = Scope(self, owner)
            return found.union(
                *(self.origins(one, inner, depth + 1) for one in self._self_attributes(owner).get(node.attr, ()))
            )
        return found

    def _self_attributes(self, owner: str) -> dict[str, list[ast.expr]]:
        """Return the values that the methods of a class assign to attributes of `self`, by attribute."""
        if owner in self._attributes:
            return self._attributes[owner]
        kept = self._attributes.setdefault(owner, {})
        for node in (part for one in self._nodes(owner) for part in ast.walk(one) if isinstance(part, ast.Assign)):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                    kept.setdefault(target.attr, []).append(node.value)
        return kept

    def _constant(self, target: Target, depth: int) -> Origins:
        """Return the values that a name in a module or class may have. Imports within the package are followed."""
        found: Origins = frozenset()
        for one in self.tree.chain(target):
            for node in self.tree.nodes(one):
                if isinstance(node, ast.ImportFrom) and node.names[0].name != "*":
                    # A name imported from another package is its own value.
                    source = self.tree.imported_module(one.module, node)
                    outside = not self.tree.covers(source.partition(".")[0])
                    found |= {Key(node.names[0].name)} if outside else frozenset()
                value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
                if value is not None and depth <= _DEPTH:
                    self._note(node)
                    found |= self.origins(value, Scope(self, one.owner), depth + 1)
        return found

    def _follow_constant(self, name: str, scope: Scope) -> None:
        known = name in scope.assigned or name in scope.parameters or name in self._followed
        if not known and name in self._bound:
            self._followed.add(name)
            for node in self._nodes(name):
                if isinstance(node, ast.Assign | ast.AnnAssign):
                    self._note(node)

    def _joined_text(self, node: ast.JoinedStr | ast.BinOp, scope: Scope, depth: int) -> Origins:
        if isinstance(node, ast.BinOp):
            parts: Sequence[ast.expr] = (node.left, node.right) if isinstance(node.op, ast.Add) else ()
        else:
            parts = [part.value if isinstance(part, ast.FormattedValue) else part for part in node.values]
        texts = [self._texts(part, scope, depth + 1, only=True) for part in parts]
        if texts and all(len(text) == 1 for text in texts):
            return frozenset({Value("".join(text[0] for text in texts))})
        return _UNKNOWN

    def _texts(self, node: ast.expr, scope: Scope, depth: int = 0, *, only: bool = False) -> list[str]:
        """Return the texts that may be the value of an expression. With `only`, return none if it may also be anything
        else."""
        found = self.origins(node, scope, depth)
        texts = [one.constant for one in found if isinstance(one, Value) and isinstance(one.constant, str)]
        return [] if only and len(texts) < len(found) else texts

    def _known_constants(self) -> Mapping[str, object]:
        """Return the names in the module that have a single, plain constant as their value, and the names that are
        given as true."""
        if self._constants is None:
            assigned = [
                (target.id, node.value.value)
                for node in self._body
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
                for target in node.targets
                if isinstance(target, ast.Name)
            ]
            self._constants = {name: value for name, value in assigned if len(self._nodes(name)) == 1}
            self._constants |= dict.fromkeys(self._given, True)
        return self._constants

    # Names.

    def dotted(self, node: ast.AST, scope: Scope) -> str:
        """Return the full name of the object that an expression refers to, as far as the source shows this name."""
        return self._named(node, scope)[0]

    def dotted_ways(self, node: ast.Name | ast.Attribute, scope: Scope) -> Iterator[str]:
        """Yield all full names that a name may refer to. There are several if a function imports the name from several
        modules."""
        for one in scope.assigned.get(node.id, ()) if isinstance(node, ast.Name) else ():
            if isinstance(one, ast.Import | ast.ImportFrom) and isinstance(node, ast.Name):
                yield self._imported(one, node.id)
        yield self.dotted(node, scope)

    def _named(self, node: ast.AST, scope: Scope, depth: int = 0) -> tuple[str, bool]:
        """Return the dotted name of an expression, and whether its first part is imported."""
        if isinstance(node, ast.Name):
            return self._name(node.id, scope, depth)
        if isinstance(node, ast.Attribute):
            name, is_imported = self._named(node.value, scope, depth)
            return f"{name}.{node.attr}", is_imported
        if not isinstance(node, ast.Call):
            return "?", False
        function = ast.unparse(node.func)
        if function == "getattr" and node.args:
            names = self._texts(node.args[1], scope)
            name, is_imported = self._named(node.args[0], scope, depth)
            return (f"{name}.{names[0]}", is_imported) if len(names) == 1 else ("?", False)
        if function in ("partial", "functools.partial") and node.args:
            return self._named(node.args[0], scope, depth)
        if self._importing and function.endswith("import_module") and node.args:
            names = self._texts(node.args[0], scope)
            return (names[0], True) if len(names) == 1 else ("?", False)
        return f"{self._named(node.func, scope, depth)[0]}()", False

    def _name(self, name: str, scope: Scope, depth: int) -> tuple[str, bool]:
        local = scope.assigned.get(name, ())
        for value in local:
            if isinstance(value, ast.Import | ast.ImportFrom):
                return self._imported(value, name), True
        if depth >= _DEPTH:
            return name, False
        if self._importing and not local and name in scope.parameters:
            value, outer = scope.parameters[name]
            return outer.reader._named(value, outer, depth + 1) if isinstance(value, ast.expr) else (name, False)
        if len(local) == 1 and isinstance(
            local[0], ast.Name | ast.Attribute | ast.Call if self._importing else _NAMES
        ):
            return self._named(local[0], scope, depth + 1)
        if not local and name not in scope.parameters and name in self._bound:
            nodes = self._nodes(name)
            for found in nodes:
                if isinstance(found, ast.Import | ast.ImportFrom):
                    return self._imported(found, name), True
            if self._importing and len(nodes) == 1 and isinstance(nodes[0], ast.Assign):
                return self._named(nodes[0].value, Scope(self), depth + 1)
        return name, False

    def _imported(self, node: ast.Import | ast.ImportFrom, name: str) -> str:
        alias = next(alias for alias in node.names if (alias.asname or alias.name.partition(".")[0]) == name)
        if isinstance(node, ast.Import):
            return alias.name if alias.asname else name
        return f"{self.tree.imported_module(self.module, node)}.{alias.name}"


_NAMES = (ast.Name, ast.Attribute)

# Decorators that leave the methods of a class alone.
_NEUTRAL_DECORATORS = frozenset(
    {"deprecated", "dataclass", "final", "register", "total_ordering", "runtime_checkable"}
)


def _within(owner: str, name: str) -> str:
    return f"{owner}.{name}" if owner else name


def _word(node: ast.expr) -> str:
    # A computed name may be any name.
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "*"


def _words_given(node: ast.Call) -> list[str]:
    """Return the names that a call such as `globals().update(f=…)` binds."""
    words = [keyword.arg or "*" for keyword in node.keywords]
    for argument in node.args[:1]:
        keys = argument.keys if isinstance(argument, ast.Dict) else [argument]
        words += ["*" if key is None else _word(key) for key in keys]
    return words or ["*"]


def _is_this_module(node: ast.expr) -> bool:
    """Return whether an expression is `sys.modules[__name__]`."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Name):
        return False
    table = node.value
    name = table.attr if isinstance(table, ast.Attribute) else getattr(table, "id", "")
    return name == "modules" and node.slice.id == "__name__"


def _does_nothing(statements: Sequence[ast.stmt]) -> bool:
    return all(
        isinstance(node, ast.Pass | ast.Raise)
        or (isinstance(node, ast.Expr) and (isinstance(node.value, ast.Constant) or is_log(node.value)))
        or (isinstance(node, ast.Return) and (node.value is None or isinstance(node.value, ast.Constant)))
        or (isinstance(node, ast.If) and is_true(node.test) is False and _does_nothing(node.orelse))
        for node in statements
    )


def _refuses(statements: Sequence[ast.stmt]) -> bool:
    return any(isinstance(node, ast.Raise) for node in statements) and _does_nothing(
        [node for node in statements if not isinstance(node, ast.Assign | ast.AnnAssign)]
    )


def ends_block(statement: ast.stmt) -> bool:
    """Return whether the statements after `statement` in the same block are unreachable."""
    if isinstance(statement, ast.Return | ast.Raise | ast.Continue | ast.Break):
        return True
    if isinstance(statement, ast.If):
        return (
            bool(statement.orelse) and any(map(ends_block, statement.body)) and any(map(ends_block, statement.orelse))
        )
    return isinstance(statement, ast.With) and any(map(ends_block, statement.body))


def _live_imports(statements: Sequence[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in statements:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        holds = is_true(node.test) if isinstance(node, ast.If | ast.While) else None
        for name in BLOCKS:
            if (name == "body" and holds is False) or (name == "orelse" and holds is True):
                continue
            for part in getattr(node, name, ()):
                yield from _live_imports(part.body if isinstance(part, ast.ExceptHandler | ast.match_case) else [part])
        if ends_block(node):
            return


def _imported_names(node: ast.Import | ast.ImportFrom, module: str, tree: SourceTree) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = tree.imported_module(module, node)
    return [base, *(f"{base}.{alias.name}" for alias in node.names)]


def _calls_one_of_its_items(loop: ast.For | ast.AsyncFor) -> bool:
    names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    calls = (node.func for statement in loop.body for node in ast.walk(statement) if isinstance(node, ast.Call))
    return any(isinstance(function, ast.Name) and function.id in names for function in calls)


def _bound_to(target: ast.expr, value: ast.expr) -> dict[str, list[ast.AST]]:
    """Return the names that a loop binds to one element of `value`, each with its value."""
    if isinstance(target, ast.Name):
        return {target.id: [value]}
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else []
    values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
    return {
        name: node for one, other in zip(parts, values, strict=False) for name, node in _bound_to(one, other).items()
    }


def _call_arguments(node: Function, call: ast.Call, bound: bool, scope: Scope) -> dict[str, Written]:
    """Return the arguments of a call, by the names of the function's parameters."""
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)
    names = names[1:] if bound and not static else names
    given: dict[str, Written] = dict(zip(names, ((argument, scope) for argument in call.args), strict=False))
    return given | {keyword.arg: (keyword.value, scope) for keyword in call.keywords if keyword.arg}


def _defaults(node: Function, scope: Scope) -> dict[str, Written]:
    """Return the parameters of a function with their defaults. If a parameter has no default, a statement stands for
    an unknown value."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    none: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    pairs = [*zip(positional, [*none, *arguments.defaults], strict=True)]
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    pairs += [(one, None) for one in (arguments.vararg, arguments.kwarg) if one is not None]
    return {argument.arg: (default or ast.Pass(), scope) for argument, default in pairs}


def _assigned(function: Function) -> dict[str, list[ast.AST]]:
    """Return the values that are assigned to a function's local names. Inner functions that it uses are included."""
    assigned: dict[str, list[ast.AST]] = {}
    used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}

    def unknown(target: ast.expr) -> None:
        for part in ast.walk(target):
            if isinstance(part, ast.Name):
                assigned.setdefault(part.id, []).append(ast.Pass())

    for node in ast.walk(function):
        match node:
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.NamedExpr():
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name) and node.value is not None:
                        assigned.setdefault(target.id, []).append(node.value)
                    elif isinstance(target, ast.Tuple | ast.List):
                        unknown(target)
            case ast.For() | ast.AsyncFor() | ast.comprehension():
                unknown(node.target)
            case ast.Import() | ast.ImportFrom():
                for alias in node.names:
                    assigned.setdefault(alias.asname or alias.name.partition(".")[0], []).append(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node is not function and node.name in used:
                assigned.setdefault(node.name, []).append(node)
    return assigned


def _exceptions(node: ast.expr | None) -> frozenset[str]:
    if node is None:
        return frozenset({"BaseException"})
    parts = (part for part in ast.walk(node) if isinstance(part, ast.Name | ast.Attribute))
    return frozenset(part.id if isinstance(part, ast.Name) else part.attr for part in parts)
