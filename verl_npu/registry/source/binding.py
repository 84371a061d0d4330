"""What a module's names are bound to at its end, by all that is executed when it is imported.

A definition may be assigned over, set, deleted, star-imported over or bound by a loop below, its class may be
replaced, and a function that the module calls may do any of that. Each way is one mark, in the order of the source.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from .definition import Function, decoration, fingerprint, function_kind, in_words

_EVERYTHING = "*"
_HERE = ""
"""The path of the module itself, where `sys.modules[__name__]` leads."""

# Classes stay what they are under these: their methods are the same ones.
_KEEPS_A_CLASS = frozenset({"deprecated", "dataclass", "final", "register", "total_ordering", "runtime_checkable"})
_DEPTH = 4


@dataclass(frozen=True, slots=True)
class Mark:
    """One way in which something is bound, or unbound."""

    path: str
    """What is bound, within the module; a star for all that is in its owner."""
    how: str | Function | ast.expr
    """In words; or the function that is defined, or the value that is assigned, whose words take longer to find."""
    outside: bool = False
    """Whether it is not bound where its class or module has its own statements."""

    @property
    def text(self) -> str:
        """How it is bound, in words."""
        if isinstance(self.how, ast.FunctionDef | ast.AsyncFunctionDef):
            return " ".join([function_kind(self.how), *map(decoration, self.how.decorator_list)])
        text = self.how if isinstance(self.how, str) else f"assigned {in_words([self.how])[:8]}"
        return f"{text} from outside" if self.outside else text

    def concerns(self, path: str) -> bool:
        """Whether it binds `path`, which has no dots behind those of its owner."""
        owner = self.path.removesuffix(_EVERYTHING)
        return self.path == path or (owner != self.path and path.rpartition(".")[0] == owner.removesuffix("."))


def ends(marks: Sequence[Mark], qualname: str) -> tuple[str, ...]:
    """Return what `qualname` is bound to, one way after the other, and its classes, if these are not only classes."""
    parts = qualname.split(".")
    found: list[str] = []
    for length in range(1, len(parts) + 1):
        path, own = ".".join(parts[:length]), length == len(parts)
        texts = list(_texts(marks, path))
        if own:
            # Two definitions of one make, under an `if` and its `else`, are called in the same way.
            found += dict.fromkeys(texts)
        elif texts != ["class"]:
            found += [f"in {path}: {text}" for text in texts]
    return tuple(found)


def _texts(marks: Sequence[Mark], path: str) -> Iterator[str]:
    made = False
    for mark in marks:
        if mark.concerns(path) and (made or not mark.path.endswith(_EVERYTHING)):
            # What is done to all names before one is bound does nothing to it.
            made = True
            yield mark.text


def marks_of(module: ast.Module) -> tuple[Mark, ...]:
    """Return all that a module does to the names in it and in its classes when it is imported."""
    reader = _Reader()
    reader.body(module.body, _Scope(""))
    return tuple(reader.marks)


@dataclass(frozen=True, slots=True)
class _Scope:
    """Where a statement stands: the module or a class in it, or a function that is called meanwhile."""

    prefix: str
    declared: frozenset[str] | None = None
    """In a function, the names that it declares global; None where all names belong to the scope."""
    depth: int = 0

    def path(self, name: str) -> str | None:
        """What a bare name stands for, if it is bound here; None if it is a function's own."""
        if self.declared is None:
            return f"{self.prefix}{name}"
        return name if name in self.declared else None


@dataclass(slots=True)
class _Reader:
    marks: list[Mark] = field(default_factory=list)
    _functions: dict[str, Function] = field(default_factory=dict)
    _classes: set[str] = field(default_factory=set)
    _names: dict[str, str] = field(default_factory=dict)
    """What else a class of the module, or the module itself, is called."""
    _called: set[str] = field(default_factory=set)

    def body(self, statements: Iterable[ast.stmt], scope: _Scope) -> None:
        for statement in statements:
            self._statement(statement, scope)

    def _statement(self, node: ast.stmt, scope: _Scope) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._function(node, scope)
        elif isinstance(node, ast.ClassDef):
            self._class(node, scope)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                self._bind(scope.path(name), f"module {alias.name if alias.asname else name}")
        elif isinstance(node, ast.ImportFrom):
            self._import(node, scope)
        elif isinstance(node, ast.If):
            self._expression(node.test, scope)
            taken = is_taken(node.test)
            self.body(node.body if taken is not False else (), scope)
            self.body(node.orelse if taken is not True else (), scope)
        elif isinstance(node, ast.Global | ast.Nonlocal | ast.Pass | ast.Return | ast.Break | ast.Continue):
            if isinstance(node, ast.Return) and node.value is not None:
                self._expression(node.value, scope)
        else:
            self._other(node, scope)

    def _other(self, node: ast.stmt, scope: _Scope) -> None:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            self._assignment(node, scope)
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                self._target(target, "deleted", scope)
        elif isinstance(node, ast.For | ast.AsyncFor):
            self._expression(node.iter, scope)
            self._target(node.target, "bound by a for", scope)
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                self._expression(item.context_expr, scope)
                if item.optional_vars is not None:
                    self._target(item.optional_vars, "bound by a with", scope)
        elif isinstance(node, ast.Match):
            self._expression(node.subject, scope)
            self._match(node, scope)
        else:
            for part in ast.iter_child_nodes(node):
                if isinstance(part, ast.expr):
                    self._expression(part, scope)
        for name in ("body", "handlers", "orelse", "finalbody"):
            for part in getattr(node, name, ()):
                if isinstance(part, ast.ExceptHandler):
                    if part.name is not None:
                        self._bind(scope.path(part.name), "bound by an except")
                    self.body(part.body, scope)
                elif isinstance(part, ast.stmt):
                    self._statement(part, scope)

    def _match(self, node: ast.Match, scope: _Scope) -> None:
        for case in node.cases:
            for part in ast.walk(case.pattern):
                name = getattr(part, "name", None) or getattr(part, "rest", None)
                if isinstance(part, ast.MatchAs | ast.MatchStar | ast.MatchMapping) and name:
                    self._bind(scope.path(name), "bound by a match")
            self.body(case.body, scope)

    def _function(self, node: Function, scope: _Scope) -> None:
        self._bind(scope.path(node.name), node)
        if not scope.prefix and scope.declared is None:
            self._functions[node.name] = node
            if node.decorator_list:
                # What decorates a function may call it.
                self._enter(node, scope)
        for expression in [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self._expression(expression, scope)

    def _class(self, node: ast.ClassDef, scope: _Scope) -> None:
        kept = (decoration(decorator) for decorator in node.decorator_list)
        changed = [text for text in kept if text.removeprefix("@").partition("(")[0] not in _KEEPS_A_CLASS]
        path = scope.path(node.name)
        self._bind(path, " ".join(["class", *changed]))
        if path is not None:
            self._classes.add(path)
            self.body(node.body, _Scope(f"{path}.", depth=scope.depth))

    def _import(self, node: ast.ImportFrom, scope: _Scope) -> None:
        # Where a name comes from within a package may change while it stays the same one.
        package = "its own package" if node.level else (node.module or "").partition(".")[0]
        for alias in node.names:
            if alias.name == _EVERYTHING:
                self._bind(f"{scope.prefix}{_EVERYTHING}", f"all names of {'.' * node.level}{node.module or ''}")
            else:
                self._bind(scope.path(alias.asname or alias.name), f"{alias.name} from {package}")

    def _assignment(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign, scope: _Scope) -> None:
        if node.value is None:
            return
        self._expression(node.value, scope)
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            self._target(target, node.value, scope)
            place = self._place(node.value)
            if isinstance(target, ast.Name) and scope.prefix == "" and place is not None:
                self._names[target.id] = place

    def _target(self, target: ast.expr, how: str | ast.expr, scope: _Scope) -> None:
        if isinstance(target, ast.Name):
            self._bind(scope.path(target.id), how)
        elif isinstance(target, ast.Starred):
            self._target(target.value, how, scope)
        elif isinstance(target, ast.Tuple | ast.List):
            for part in target.elts:
                self._target(part, how, scope)
        elif isinstance(target, ast.Attribute):
            owner = self._place(target.value)
            if owner is not None:
                self._bind(_within(owner, target.attr), how, outside=True)
        elif isinstance(target, ast.Subscript):
            self._subscript(target, how, scope)

    def _subscript(self, target: ast.Subscript, how: str | ast.expr, scope: _Scope) -> None:
        if _is_this_module(target):
            self._bind(_EVERYTHING, "another module in place of this one")
            return
        owner = self._names_of(target.value, scope)
        if owner is not None:
            self._bind(_within(owner, _word(target.slice)), how, outside=True)

    def _expression(self, expression: ast.expr, scope: _Scope) -> None:
        waiting: list[ast.AST] = [expression]
        while waiting:
            node = waiting.pop(0)
            if isinstance(node, ast.Lambda):
                continue
            if isinstance(node, ast.NamedExpr):
                self._target(node.target, "bound by :=", scope)
            elif isinstance(node, ast.Call):
                self._call(node, scope)
            waiting += ast.iter_child_nodes(node)

    def _call(self, node: ast.Call, scope: _Scope) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in ("setattr", "delattr", "__setattr__", "__delattr__") and len(node.args) >= 2:
            owner = self._place(node.args[0])
            if owner is not None:
                self._bind(_within(owner, _word(node.args[1])), f"set from outside by {name}")
        elif name in ("exec", "eval") and isinstance(node.func, ast.Name):
            self._bind(_EVERYTHING, f"whatever {name} does")
        elif isinstance(node.func, ast.Attribute):
            owner = self._names_of(node.func.value, scope)
            if owner is not None and name not in ("get", "items", "keys", "values", "copy", "__getitem__"):
                for word in _words_given(node):
                    self._bind(_within(owner, word), f"changed from outside by {name}")
        elif isinstance(node.func, ast.Name) and node.func.id in self._functions:
            self._enter(self._functions[node.func.id], scope)

    def _enter(self, function: Function, scope: _Scope) -> None:
        if function.name in self._called or scope.depth >= _DEPTH:
            return
        self._called.add(function.name)
        declared = (node.names for node in ast.walk(function) if isinstance(node, ast.Global))
        names = frozenset(name for several in declared for name in several)
        self.body(function.body, _Scope("", names, scope.depth + 1))

    def _place(self, node: ast.expr) -> str | None:
        """Return what of this module an expression stands for; None if it is nothing of it."""
        if _is_this_module(node):
            return _HERE
        if isinstance(node, ast.Name):
            return self._names.get(node.id, node.id if node.id in self._classes else None)
        if isinstance(node, ast.Attribute):
            owner = self._place(node.value)
            path = None if owner is None else _within(owner, node.attr)
            return path if path in self._classes else None
        return None

    def _names_of(self, node: ast.expr, scope: _Scope) -> str | None:
        """Return the path of what an expression gives the table of names of; None if it is no such table."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "globals" or (node.func.id in ("vars", "locals") and not node.args):
                inner = node.func.id != "globals" and (scope.prefix or scope.declared is not None)
                return None if inner else _HERE
            if node.func.id == "vars" and len(node.args) == 1:
                return self._place(node.args[0])
        if isinstance(node, ast.Attribute) and node.attr == "__dict__":
            return self._place(node.value)
        return None

    def _bind(self, path: str | None, how: str | Function | ast.expr, *, outside: bool = False) -> None:
        if path is not None:
            self.marks.append(Mark(path, how, outside))


def is_taken(test: ast.expr) -> bool | None:
    """Whether a branch is taken by a process that imports the module; None if the source does not tell."""
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = is_taken(test.operand)
        return None if inner is None else not inner
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    if name == "TYPE_CHECKING":
        return False
    compared = isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"
    return False if compared and fingerprint([test]) == _AS_A_PROGRAM else None


_AS_A_PROGRAM = fingerprint([ast.parse('__name__ == "__main__"', mode="eval").body])


def _within(owner: str, name: str) -> str:
    return f"{owner}.{name}" if owner else name


def _word(node: ast.expr) -> str:
    # A name that is made meanwhile may be any.
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else _EVERYTHING


def _words_given(node: ast.Call) -> list[str]:
    """Return the names that a call such as `globals().update(f=…)` is about."""
    words = [keyword.arg or _EVERYTHING for keyword in node.keywords]
    for argument in node.args[:1]:
        keys = argument.keys if isinstance(argument, ast.Dict) else [argument]
        words += [_EVERYTHING if key is None else _word(key) for key in keys]
    return words or [_EVERYTHING]


def _is_this_module(node: ast.expr) -> bool:
    """Whether an expression is `sys.modules[__name__]`."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Name):
        return False
    table = node.value
    name = table.attr if isinstance(table, ast.Attribute) else getattr(table, "id", "")
    return name == "modules" and node.slice.id == "__name__"
