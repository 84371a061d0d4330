"""What a definition does, by its source: its calls and what reaches their arguments, its imports, what it reads, sets,
raises and catches.

Only what can be executed counts: no branch that is never taken, no block for type checkers, nothing after a `return`.
A condition under which the code only refuses to go on, and what is logged, is not support for what it names. Functions
of the same module or class that are called are read too, with the arguments that they are given.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .definition import bindings, bound_names, fingerprint
from .named import Key, Origins, Value
from .tree import SourceTree, Target, is_there

# Functions that call one another are followed this deep, and values through so many names.
_DEPTH = 4

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

_UNKNOWN: Origins = frozenset({None})


Written = tuple[ast.expr, "_Scope"]
"""An expression, and where it stands: what it may be is looked up if it is asked for."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call, or a function that is handed over to be called in another thread."""

    function: str
    """Its full dotted name if it is imported, else as it is written."""
    given: tuple[Written, ...]
    """Its positional arguments."""
    keywords: Mapping[str, Written]
    is_open: bool
    """Whether it is given more keywords, which the source does not tell."""
    conditions: tuple[Written, ...]
    """What has to hold for it to be called."""
    in_thread: bool
    is_repeated: bool
    """Whether it is called in a `while`."""
    is_direct: bool
    """Whether the definition itself calls it, and not a function that it calls."""


@dataclass(frozen=True, slots=True, eq=False)
class Refusal:
    """A `raise`, or an `assert`."""

    exception: str
    conditions: tuple[Written, ...]


@dataclass(slots=True)
class Body:
    """What a definition, with the functions that it calls beside it, does."""

    calls: list[Call] = field(default_factory=list)
    passed: dict[str, list[Written]] = field(default_factory=dict)
    """What reaches each argument of that keyword, and each entry of that key in a dictionary."""
    defaults: dict[str, Origins] = field(default_factory=dict)
    """The parameters of the definition itself, and what they are if nothing is given for them."""
    imports: set[str] = field(default_factory=set)
    """Modules, and names in them, by their full names."""
    reads: set[str] = field(default_factory=set)
    """Names, attributes and strings."""
    sets: set[str] = field(default_factory=set)
    """Attributes of other things that it assigns, by their dotted names."""
    keys: dict[str, list[Written]] = field(default_factory=dict)
    """Under what each mapping is given entries, by the mapping's dotted name; plain strings are in `passed`."""
    refusals: list[Refusal] = field(default_factory=list)
    catches: set[str] = field(default_factory=set)
    parts: list[ast.AST] = field(default_factory=list)
    """All definitions and constants that were read."""

    @property
    def form(self) -> str:
        """A hash of all that was read, in its normalised form: what does the same work has it too."""
        return fingerprint(self.parts)


def read_body(subject: str, tree: SourceTree) -> Body:
    """Return what a target, or a whole module, does; nothing if it is not there. Raises SourceError."""
    return tree.recall(("body", subject), lambda: _read_body(subject, tree))


def _read_body(subject: str, tree: SourceTree) -> Body:
    body = Body()
    module, _, qualname = subject.partition(":")
    if not qualname:
        parsed = tree.parse(module)
        if parsed is not None:
            reader = _Reader(_Module(module, parsed, tree), body)
            body.parts.append(parsed)
            reader.block(parsed.body, _Scope(reader), (), everything=True)
        return body
    for target in tree.chain(Target.parse(subject)):
        parsed = tree.parse(target.module)
        if parsed is None:
            continue
        reader = _Reader(_Module(target.module, parsed, tree), body)
        for node in tree.nodes(target):
            if isinstance(node, _Function):
                body.defaults.update(_defaults(node, reader))
                reader.enter(node, target.owner, {})
            elif isinstance(node, ast.ClassDef):
                body.parts.append(node)
                reader.block(node.body, _Scope(reader, owner=target.qualname), (), everything=True)
            else:
                body.parts.append(node)
                reader.block([node], _Scope(reader, owner=target.owner), ())
    return body


def is_hollow(subject: str, tree: SourceTree) -> bool:
    """Whether something is defined and does nothing: a body that only passes, raises, or returns a constant."""
    if ":" not in subject:
        parsed = tree.parse(subject)
        return parsed is not None and not bound_names(parsed.body)
    nodes = tree.meaning(Target.parse(subject))
    functions = [node for node in nodes if isinstance(node, _Definition)]
    return bool(functions) and all(_does_nothing(node.body) for node in functions)


def _does_nothing(statements: Sequence[ast.stmt]) -> bool:
    return all(
        isinstance(node, ast.Pass | ast.Raise)
        or (isinstance(node, ast.Expr) and (isinstance(node.value, ast.Constant) or _is_log(node.value)))
        or (isinstance(node, ast.Return) and (node.value is None or isinstance(node.value, ast.Constant)))
        or (isinstance(node, ast.If) and is_true(node.test) is False and _does_nothing(node.orelse))
        for node in statements
    )


def origins_of(written: Written) -> Origins:
    """Return the constants and settings that an expression may be."""
    node, scope = written
    return scope.reader.origins(node, scope)


def function_of(written: Written) -> str:
    """Return the name of the function of which an expression is a call; empty if it is none."""
    node, scope = written
    return scope.reader.dotted(node.func, scope) if isinstance(node, ast.Call) else ""


def names_in(conditions: Iterable[Written]) -> frozenset[str]:
    """Return what conditions read, also by way of local names."""
    found: set[str] = set()
    waiting: list[tuple[ast.AST, _Scope, int]] = [(node, scope, 0) for node, scope in conditions]
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
    """Return all that a module imports anywhere in it, by its full names. Raises SourceError."""
    data = tree.read(module)
    parsed = tree.parse(module)
    if data is None or parsed is None:
        return frozenset()
    if imports_by_name(module, tree):
        return frozenset(read_body(module, tree).imports)
    found = tree.memory.recall(("imports", data), lambda: tuple(_live_imports(parsed.body)))
    return frozenset(name for node in found for name in _imported_names(node, module, tree))


def imports_by_name(module: str, tree: SourceTree) -> bool:
    """Whether a module may import something that is not written in an import statement."""
    data = tree.read(module) or b""
    return b"import_module" in data or b"__import__" in data


def importer(subject: str, packages: Sequence[str], tree: SourceTree) -> str | None:
    """Return a module of some packages that uses what is gone: that imports it, or its module; None if none does."""
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


def _live_imports(statements: Sequence[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in statements:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        holds = is_true(node.test) if isinstance(node, ast.If | ast.While) else None
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            if (name == "body" and holds is False) or (name == "orelse" and holds is True):
                continue
            for part in getattr(node, name, ()):
                yield from _live_imports(part.body if isinstance(part, ast.ExceptHandler | ast.match_case) else [part])
        if _ends(node):
            return


def _imported_names(node: ast.Import | ast.ImportFrom, module: str, tree: SourceTree) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = tree.imported_module(module, node)
    return [base, *(f"{base}.{alias.name}" for alias in node.names)]


@dataclass(slots=True)
class _Module:
    name: str
    parsed: ast.Module
    tree: SourceTree

    def binding(self, name: str, owner: str = "") -> list[ast.stmt]:
        return self.tree.nodes(Target(self.name, f"{owner}.{name}" if owner else name))


@dataclass(slots=True, eq=False)
class _Scope:
    reader: _Reader
    owner: str = ""
    """The class that the code belongs to."""
    parameters: Mapping[str, Origins] = field(default_factory=dict)
    assigned: Mapping[str, Sequence[ast.expr | ast.stmt]] = field(default_factory=dict)
    depth: int = 0
    settled: Mapping[str, ast.Assign] = field(default_factory=dict)
    """The local names that are assigned under no condition, and by which statement, if none assigns them later."""


def is_true(test: ast.expr, constants: Mapping[str, object] | None = None) -> bool | None:
    """Whether a condition always holds; None if it depends."""
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if isinstance(test, ast.Name | ast.Attribute):
        name = test.id if isinstance(test, ast.Name) else test.attr
        if name == "TYPE_CHECKING":
            return False
        return bool(constants[name]) if constants and isinstance(test, ast.Name) and name in constants else None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = is_true(test.operand, constants)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        answers = [is_true(value, constants) for value in test.values]
        decisive = isinstance(test.op, ast.Or)
        return decisive if decisive in answers else None if None in answers else not decisive
    return None


_LOGGERS = ("logger", "logging", "log", "LOG", "_logger", "LOGGER")


def _is_log(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    text = ast.unparse(node.func)
    return text in ("print", "warnings.warn", "warn") or (
        "." in text and text.split(".")[-2].removesuffix("()") in _LOGGERS
    )


def _ends(statement: ast.stmt) -> bool:
    """Whether nothing after a statement of the same block is reached."""
    if isinstance(statement, ast.Return | ast.Raise | ast.Continue | ast.Break):
        return True
    if isinstance(statement, ast.If):
        return bool(statement.orelse) and any(map(_ends, statement.body)) and any(map(_ends, statement.orelse))
    return isinstance(statement, ast.With) and any(map(_ends, statement.body))


def _refuses(statements: Sequence[ast.stmt]) -> bool:
    return any(isinstance(node, ast.Raise) for node in statements) and _does_nothing(
        [node for node in statements if not isinstance(node, ast.Assign | ast.AnnAssign)]
    )


_IN_A_THREAD = ("run_in_executor", "to_thread", "submit", "Thread", "start_new_thread", "run_coroutine_threadsafe")


class _Reader:
    """Reads the statements of one module."""

    def __init__(self, module: _Module, body: Body) -> None:
        self._module = module
        self._body = body
        self._entered: set[tuple[ast.AST, tuple[tuple[str, Origins], ...]]] = set()
        self._noted: set[ast.AST] = set()
        self._constants: dict[str, object] | None = None
        self._attributes: dict[str, dict[str, list[ast.expr]]] = {}
        self._followed: set[str] = set()
        data = module.tree.read(module.name)
        self._bound = module.tree.memory.recall(("bound", data), lambda: frozenset(bound_names(module.parsed.body)))
        self._whiles = 0

    # Statements.

    def enter(self, node: _Function, owner: str, given: Mapping[str, Origins], depth: int = 0) -> None:
        """Read a function, with what its parameters are given."""
        key = (node, tuple(sorted(given.items(), key=lambda pair: pair[0])))
        if key in self._entered or len(self._entered) > 100:
            return
        self._entered.add(key)
        self._note(node)
        parameters = {**_defaults(node, self), **given}
        self.block(node.body, _Scope(self, owner, parameters, _assigned(node), depth, _settled(node)), ())

    def _note(self, node: ast.AST) -> None:
        if node not in self._noted:
            self._noted.add(node)
            self._body.parts.append(node)

    def block(
        self, statements: Sequence[ast.stmt], scope: _Scope, conditions: tuple[Written, ...], everything: bool = False
    ) -> None:
        """Read statements in order, up to one that ends the block; with `everything`, functions count as called."""
        for statement in statements:
            self._statement(statement, scope, conditions, everything)
            if _ends(statement):
                return

    def _statement(self, node: ast.stmt, scope: _Scope, conditions: tuple[Written, ...], everything: bool) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._import(node)
        elif isinstance(node, ast.ClassDef):
            if everything:
                owner = f"{scope.owner}.{node.name}" if scope.owner else node.name
                self.block(node.body, _Scope(self, owner=owner), conditions, everything=True)
        elif isinstance(node, _Function):
            # What is defined inside a function counts if it is used there.
            if everything or node.name in scope.assigned:
                inner = _Scope(self, scope.owner, {**scope.parameters, **_defaults(node, self)}, {}, scope.depth)
                inner.assigned = {**scope.assigned, **_assigned(node)}
                self._note(node)
                self.block(node.body, inner, conditions)
        elif isinstance(node, ast.If):
            self._if(node, scope, conditions, everything)
        elif isinstance(node, ast.Raise):
            self._refuse(node.exc, conditions, scope)
        elif isinstance(node, ast.Assert):
            self._body.refusals.append(Refusal("AssertionError", (*conditions, (node.test, scope))))
        elif isinstance(node, ast.Try):
            self.block(node.body, scope, conditions, everything)
            for handler in node.handlers:
                if not _does_nothing(handler.body):
                    self._body.catches |= _exceptions(handler.type)
                self.block(handler.body, scope, conditions, everything)
            self.block(node.orelse, scope, conditions, everything)
            self.block(node.finalbody, scope, conditions, everything)
        elif isinstance(node, ast.While | ast.For | ast.AsyncFor):
            test = node.test if isinstance(node, ast.While) else node.iter
            if isinstance(node, ast.While) and is_true(test, self._known()) is False:
                return self.block(node.orelse, scope, conditions, everything)
            self._whiles += isinstance(node, ast.While)
            self._expression(test, scope, conditions)
            self.block(node.body, scope, conditions, everything)
            self._whiles -= isinstance(node, ast.While)
            self.block(node.orelse, scope, conditions, everything)
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                self._expression(item.context_expr, scope, conditions)
            self.block(node.body, scope, conditions, everything)
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            self._simple(node, scope, conditions)
        return None

    def _simple(self, node: ast.stmt, scope: _Scope, conditions: tuple[Written, ...]) -> None:
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign | ast.AugAssign)
            else []
        )
        for target in (part for whole in targets for part in ast.walk(whole)):
            if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store):
                self._body.sets.add(self.dotted(target, scope))
            elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                value = getattr(node, "value", None)
                if isinstance(target.slice.value, str) and isinstance(value, ast.expr):
                    self._body.passed.setdefault(target.slice.value, []).append((value, scope))
            elif isinstance(target, ast.Subscript) and isinstance(target.ctx, ast.Store):
                key = target.slice
                made = scope.settled.get(key.id) if isinstance(key, ast.Name) else None
                written = made.value if made is not None and made.lineno < node.lineno else key
                self._body.keys.setdefault(self.dotted(target.value, scope), []).append((written, scope))
        for child in ast.iter_child_nodes(node):
            # What an annotation says is no use of it.
            if isinstance(child, ast.expr) and child not in targets and child is not getattr(node, "annotation", None):
                self._expression(child, scope, conditions)
            elif isinstance(child, ast.expr) and child in targets:
                for part in ast.walk(child):
                    if isinstance(part, ast.Name | ast.Attribute) and isinstance(part.ctx, ast.Load):
                        self._body.reads.add(part.id if isinstance(part, ast.Name) else part.attr)
        if isinstance(node, ast.Match):
            for case in node.cases:
                self.block(case.body, scope, conditions)

    def _if(self, node: ast.If, scope: _Scope, conditions: tuple[Written, ...], everything: bool) -> None:
        holds = is_true(node.test, self._known())
        under = (*conditions, (node.test, scope))
        refuses = holds is None and _refuses(node.body)
        if holds is not False:
            if not refuses:
                self._expression(node.test, scope, conditions)
                self.block(node.body, scope, under, everything)
            else:
                for inner in node.body:
                    if isinstance(inner, ast.Raise):
                        self._refuse(inner.exc, under, scope)
        if holds is not True:
            self.block(node.orelse, scope, under, everything)

    def _refuse(self, raised: ast.expr | None, conditions: tuple[Written, ...], scope: _Scope) -> None:
        function = raised.func if isinstance(raised, ast.Call) else raised
        self._body.refusals.append(Refusal(self.dotted(function, scope) if function is not None else "", conditions))

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        self._body.imports.update(_imported_names(node, self._module.name, self._module.tree))

    # Expressions.

    def _expression(self, node: ast.expr, scope: _Scope, conditions: tuple[Written, ...]) -> None:
        waiting: list[tuple[ast.AST, tuple[Written, ...], bool]] = [(node, conditions, False)]
        while waiting:
            one, given, elsewhere = waiting.pop()
            if _is_log(one):
                continue
            if isinstance(one, ast.IfExp):
                holds = is_true(one.test, self._known())
                under = (*given, (one.test, scope))
                waiting += [(one.test, given, elsewhere)] if holds is None else []
                waiting += [(one.body, under, elsewhere)] if holds is not False else []
                waiting += [(one.orelse, under, elsewhere)] if holds is not True else []
                continue
            if isinstance(one, ast.Call):
                elsewhere = self._call(one, scope, given, elsewhere) or elsewhere
            elif isinstance(one, ast.Dict):
                for key, value in zip(one.keys, one.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        self._body.passed.setdefault(key.value, []).append((value, scope))
            elif isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load):
                self._body.reads.add(one.id)
                self._follow_constant(one.id, scope)
            elif isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Load):
                self._body.reads.add(one.attr)
            elif isinstance(one, ast.Constant) and isinstance(one.value, str):
                self._body.reads.add(one.value)
            waiting += [(child, given, elsewhere) for child in ast.iter_child_nodes(one)]

    def _call(self, node: ast.Call, scope: _Scope, conditions: tuple[Written, ...], in_thread: bool) -> bool:
        """Note a call; return whether what it is given is called in another thread."""
        function = self.dotted(node.func, scope)
        given = tuple((argument, scope) for argument in node.args)
        keywords = {one.arg: (one.value, scope) for one in node.keywords if one.arg is not None}
        is_open = len(keywords) < len(node.keywords)
        self._body.calls.append(
            Call(function, given, keywords, is_open, conditions, in_thread, self._whiles > 0, not scope.depth)
        )
        for name, written in keywords.items():
            self._body.passed.setdefault(name, []).append(written)
        last = function.rpartition(".")[2]
        if last in ("import_module", "__import__") and node.args:
            names = [one.constant for one in self.origins(node.args[0], scope) if isinstance(one, Value)]
            self._body.imports |= {name for name in names if isinstance(name, str)}
        starts = last in _IN_A_THREAD
        if starts:
            for handed in [*node.args, *(keyword.value for keyword in node.keywords)]:
                name = self.dotted(handed, scope) if isinstance(handed, ast.Name | ast.Attribute) else ""
                if name:
                    self._body.calls.append(
                        Call(name, (), {}, True, conditions, True, self._whiles > 0, not scope.depth)
                    )
                    self._follow(handed, None, scope)
        self._follow(node.func, node, scope)
        return starts

    def _follow(self, function: ast.expr, call: ast.Call | None, scope: _Scope) -> None:
        """Read a function of the same module or class."""
        if scope.depth >= _DEPTH:
            return
        for node, owner in self._functions(function, scope):
            given = {} if call is None else self._given(node, call, bool(owner), scope)
            self.enter(node, owner, given, scope.depth + 1)

    def _functions(self, function: ast.expr, scope: _Scope) -> Iterator[tuple[_Function, str]]:
        if isinstance(function, ast.Name) and function.id in self._bound and function.id not in scope.assigned:
            yield from ((node, "") for node in self._module.binding(function.id) if isinstance(node, _Function))
        elif isinstance(function, ast.Attribute):
            base = ast.unparse(function.value)
            owner = scope.owner if base in ("self", "cls", "super()") else base
            if owner.partition(".")[0] in self._bound:
                yield from self._methods(owner, function.attr, 0, beyond=base == "super()")

    def _methods(self, owner: str, name: str, depth: int, beyond: bool = False) -> Iterator[tuple[_Function, str]]:
        """The method of a class, or of the first of its bases in this module that has it."""
        found = [] if beyond else [node for node in self._module.binding(name, owner) if isinstance(node, _Function)]
        if found:
            yield from ((node, owner) for node in found)
            return
        classes = [node for node in self._module.binding(owner) if isinstance(node, ast.ClassDef)]
        for base in (base for node in classes for base in node.bases if isinstance(base, ast.Name)):
            if depth < _DEPTH and base.id != owner:
                yield from self._methods(base.id, name, depth + 1)

    def _given(self, node: _Function, call: ast.Call, bound: bool, scope: _Scope) -> dict[str, Origins]:
        names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
        static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)
        if bound and not static:
            names = names[1:]
        given = dict(zip(names, (self.origins(argument, scope) for argument in call.args), strict=False))
        given |= {keyword.arg: self.origins(keyword.value, scope) for keyword in call.keywords if keyword.arg}
        return given

    # Where values come from.

    def origins(self, node: ast.expr, scope: _Scope, depth: int = 0) -> Origins:
        """Return the constants and settings that an expression may be."""
        if isinstance(node, ast.Constant):
            return frozenset({Value(node.value)})
        if depth > 2 * _DEPTH:
            return _UNKNOWN
        if isinstance(node, ast.Name):
            return self._origins_of_name(node.id, scope, depth)
        if isinstance(node, ast.IfExp):
            return self.origins(node.body, scope, depth + 1) | self.origins(node.orelse, scope, depth + 1)
        if isinstance(node, ast.BoolOp):
            return frozenset().union(*(self.origins(value, scope, depth + 1) for value in node.values))
        if isinstance(node, ast.JoinedStr | ast.BinOp):
            return self._joined(node, scope, depth)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return frozenset({Key(str(node.slice.value))})
        if isinstance(node, ast.Attribute):
            attribute = self._origins_of_attribute(node, scope, depth)
            return attribute or frozenset({Key(node.attr)})
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
            arguments = node.args[1:] if name == "getattr" else node.args
            if name in ("get", "pop", "getattr") and arguments:
                keys = [one.constant for one in self.origins(arguments[0], scope, depth + 1) if isinstance(one, Value)]
                found: Origins = frozenset(Key(str(key)) for key in keys)
                others = [*arguments[1:], *(keyword.value for keyword in node.keywords)]
                return found.union(*(self.origins(other, scope, depth + 1) for other in others))
        return _UNKNOWN

    def _origins_of_name(self, name: str, scope: _Scope, depth: int) -> Origins:
        found: Origins = scope.parameters.get(name, frozenset())
        for value in scope.assigned.get(name, ()):
            found |= self.origins(value, scope, depth + 1) if isinstance(value, ast.expr) else _UNKNOWN
        if found or name in scope.parameters or name in scope.assigned:
            return found or _UNKNOWN
        found = self._constant(Target(self._module.name, name), depth) if name in self._bound else frozenset()
        return found or _UNKNOWN

    def _origins_of_attribute(self, node: ast.Attribute, scope: _Scope, depth: int) -> Origins:
        base = ast.unparse(node.value)
        owner = scope.owner if base in ("self", "cls", "type(self)", "self.__class__") else base
        if owner.partition(".")[0] not in self._bound:
            return frozenset()
        found = self._constant(Target(self._module.name, f"{owner}.{node.attr}"), depth)
        if owner == scope.owner:
            for assigned in self._kept(owner).get(node.attr, ()):
                found |= self.origins(assigned, _Scope(self, owner), depth + 1)
        return found

    def _kept(self, owner: str) -> dict[str, list[ast.expr]]:
        """What the methods of a class assign to attributes of `self`."""
        if owner in self._attributes:
            return self._attributes[owner]
        kept = self._attributes.setdefault(owner, {})
        for node in (part for c in self._module.binding(owner) for part in ast.walk(c)):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                        kept.setdefault(target.attr, []).append(node.value)
        return kept

    def _constant(self, target: Target, depth: int) -> Origins:
        """What a name of a module, or of a class in it, is assigned; through imports of the same package."""
        found: Origins = frozenset()
        for one in self._module.tree.chain(target):
            for node in self._module.tree.nodes(one):
                if isinstance(node, ast.ImportFrom) and node.names[0].name != "*":
                    # What is imported from another package is known by its name.
                    outside = not self._module.tree.covers(
                        self._module.tree.imported_module(one.module, node).partition(".")[0]
                    )
                    found |= {Key(node.names[0].name)} if outside else frozenset()
                value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
                if value is None or depth > _DEPTH:
                    continue
                self._note(node)
                owner = _Scope(self, one.owner)
                found |= self.origins(value, owner, depth + 1)
        return found

    def _follow_constant(self, name: str, scope: _Scope) -> None:
        known = name in scope.assigned or name in scope.parameters or name in self._followed
        if not known and name in self._bound:
            self._followed.add(name)
            for node in self._module.binding(name):
                if isinstance(node, ast.Assign | ast.AnnAssign):
                    self._note(node)

    def _joined(self, node: ast.JoinedStr | ast.BinOp, scope: _Scope, depth: int) -> Origins:
        if isinstance(node, ast.BinOp):
            parts: Iterable[ast.expr] = (node.left, node.right) if isinstance(node.op, ast.Add) else ()
        else:
            parts = [part.value if isinstance(part, ast.FormattedValue) else part for part in node.values]
        texts = [
            [one.constant if isinstance(one, Value) else None for one in self.origins(part, scope, depth + 1)]
            for part in parts
        ]
        if texts and all(len(text) == 1 and isinstance(text[0], str) for text in texts):
            return frozenset({Value("".join(str(text[0]) for text in texts))})
        return _UNKNOWN

    def _known(self) -> Mapping[str, object]:
        """The names of the module that are assigned a plain constant, and nothing else."""
        if self._constants is None:
            assigned = [
                (target.id, node.value.value)
                for node in self._module.parsed.body
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
                for target in node.targets
                if isinstance(target, ast.Name)
            ]
            body = self._module.parsed.body
            self._constants = {name: value for name, value in assigned if len(list(bindings(body, name))) == 1}
        return self._constants

    # Names.

    def dotted(self, node: ast.expr, scope: _Scope, depth: int = 0) -> str:
        """Return the full name of what an expression refers to, as far as the source tells."""
        if isinstance(node, ast.Name):
            local = scope.assigned.get(node.id, ())
            for value in local:
                if isinstance(value, ast.Import | ast.ImportFrom):
                    return self._imported(value, node.id)
            if len(local) == 1 and isinstance(local[0], ast.Name | ast.Attribute) and depth < _DEPTH:
                return self.dotted(local[0], scope, depth + 1)
            if not local and node.id not in scope.parameters and node.id in self._bound:
                for found in self._module.binding(node.id):
                    if isinstance(found, ast.Import | ast.ImportFrom):
                        return self._imported(found, node.id)
            return node.id
        if isinstance(node, ast.Attribute):
            return f"{self.dotted(node.value, scope, depth)}.{node.attr}"
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in ("getattr", "partial", "functools.partial") and node.args:
                if name != "getattr":
                    return self.dotted(node.args[0], scope, depth)
                names = [one.constant for one in self.origins(node.args[1], scope) if isinstance(one, Value)]
                return f"{self.dotted(node.args[0], scope, depth)}.{names[0]}" if len(names) == 1 else "?"
            return f"{self.dotted(node.func, scope, depth)}()"
        return "?"

    def _imported(self, node: ast.Import | ast.ImportFrom, name: str) -> str:
        alias = next(alias for alias in node.names if (alias.asname or alias.name.partition(".")[0]) == name)
        if isinstance(node, ast.Import):
            return alias.name if alias.asname else name
        return f"{self._module.tree.imported_module(self._module.name, node)}.{alias.name}"


def _defaults(node: _Function, reader: _Reader) -> dict[str, Origins]:
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    none: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    pairs = [*zip(positional, [*none, *arguments.defaults], strict=True)]
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    found = {
        a.arg: reader.origins(default, _Scope(reader)) if default is not None else _UNKNOWN for a, default in pairs
    }
    found |= {one.arg: _UNKNOWN for one in (arguments.vararg, arguments.kwarg) if one is not None}
    return found


def _assigned(function: _Function) -> dict[str, list[ast.expr | ast.stmt]]:
    """What the local names of a function are assigned; of functions inside it, those that are used."""
    assigned: dict[str, list[ast.expr | ast.stmt]] = {}
    used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    if node.value is not None:
                        assigned.setdefault(target.id, []).append(node.value)
                elif isinstance(target, ast.Tuple | ast.List):
                    for part in ast.walk(target):
                        if isinstance(part, ast.Name):
                            assigned.setdefault(part.id, []).append(ast.Pass())
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            for part in ast.walk(node.target):
                if isinstance(part, ast.Name):
                    assigned.setdefault(part.id, []).append(ast.Pass())
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                assigned.setdefault(alias.asname or alias.name.partition(".")[0], []).append(node)
        elif isinstance(node, _Function) and node is not function and node.name in used:
            assigned.setdefault(node.name, []).append(node)
    return assigned


def _settled(function: _Function) -> dict[str, ast.Assign]:
    """The names that a statement of a function's own block assigns last, and that statement."""
    stored = [node for node in ast.walk(function) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)]
    last = {name.id: name for name in sorted(stored, key=lambda name: name.lineno)}
    plain = [node for node in function.body if isinstance(node, ast.Assign)]
    return {
        name.id: node
        for node in plain
        for name in node.targets
        if name in last.values() and isinstance(name, ast.Name)
    }


def _exceptions(node: ast.expr | None) -> set[str]:
    if node is None:
        return {"BaseException"}
    return {
        part.id if isinstance(part, ast.Name) else part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Name | ast.Attribute)
    }
