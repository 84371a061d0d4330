"""Definitions: how the statements of a scope bind a name, and what they say of it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from .fingerprint import fingerprint, outline, signature

__all__ = ["Definition", "Kind", "bindings", "bound_names", "define", "used_names"]


class Kind(str, Enum):
    """How a name comes to be in its module or class."""

    FUNCTION = "function"
    COROUTINE = "coroutine function"
    CLASS = "class"
    PROPERTY = "property"
    STATICMETHOD = "staticmethod"
    CLASSMETHOD = "classmethod"
    ASSIGNED = "assigned"
    IMPORTED = "imported"

    def __str__(self) -> str:
        return self.value


_DECORATED = {"property": Kind.PROPERTY, "staticmethod": Kind.STATICMETHOD, "classmethod": Kind.CLASSMETHOD}


@dataclass(frozen=True, slots=True)
class Definition:
    """What the source says of a target."""

    kind: Kind
    signature: str
    fingerprint: str
    outline: tuple[str, ...]
    """The marks of its statements, in order."""
    plain: bool
    """Whether only definitions of that kind bind it, and no decorator may have made something else of them."""


def define(nodes: Sequence[ast.stmt]) -> Definition | None:
    """Return what the statements that bind a name say of it; None if there are none."""
    if not nodes:
        return None
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return Definition(
        kind=_kind(nodes[-1]),
        signature=" | ".join(dict.fromkeys(signature(node) for node in functions)),
        fingerprint=fingerprint(nodes),
        outline=tuple(line.mark for line in outline(nodes)),
        plain=all(_is_plain(node) for node in nodes) and len({_kind(node) for node in nodes}) == 1,
    )


def bindings(statements: Sequence[ast.stmt], name: str) -> Iterator[ast.stmt]:
    """Return the statements of a scope that bind `name`, in order; both branches of an `if` count."""
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if statement.name == name:
                yield statement
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            named = [a for a in statement.names if (a.asname or a.name.partition(".")[0]) == name]
            if named:
                yield _import_of(statement, named)
        elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = (n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))
            if name in names:
                yield statement
        else:
            # if, try, with, for, while: their bodies share the scope.
            for part in ("body", "orelse", "finalbody"):
                yield from bindings(getattr(statement, part, []), name)
            for handler in getattr(statement, "handlers", []):
                yield from bindings(handler.body, name)


def bound_names(statement: ast.stmt) -> Iterator[str]:
    """Return the names that a statement binds in its own scope; both branches of an `if` count."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
    elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))
    else:
        for part in ("body", "orelse", "finalbody"):
            yield from (name for inner in getattr(statement, part, []) for name in bound_names(inner))
        for handler in getattr(statement, "handlers", []):
            yield from (name for inner in handler.body for name in bound_names(inner))


def used_names(statements: Iterable[ast.AST]) -> frozenset[str]:
    """Return all that is written in some statements: names, attributes, keywords, imports and strings."""
    return frozenset(name for statement in statements for node in ast.walk(statement) for name in _names(node))


def _names(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Attribute):
        return {node.attr}
    if isinstance(node, ast.keyword | ast.arg):
        return {node.arg} if node.arg else set()
    if isinstance(node, ast.alias):
        return {*node.name.split("."), node.asname or ""} | {node.name}
    if isinstance(node, ast.ImportFrom):
        return {node.module or "", *(node.module or "").split(".")}
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    return set()


def _import_of(statement: ast.Import | ast.ImportFrom, names: list[ast.alias]) -> ast.stmt:
    # What else the same line imports is no part of this name's definition.
    if isinstance(statement, ast.Import):
        return ast.copy_location(ast.Import(names), statement)
    return ast.copy_location(ast.ImportFrom(statement.module, names, statement.level), statement)


def _kind(node: ast.stmt) -> Kind:
    if isinstance(node, ast.ClassDef):
        return Kind.CLASS
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Name) and decorator.id in _DECORATED:
                return _DECORATED[decorator.id]
        return Kind.COROUTINE if isinstance(node, ast.AsyncFunctionDef) else Kind.FUNCTION
    return Kind.IMPORTED if isinstance(node, ast.Import | ast.ImportFrom) else Kind.ASSIGNED


def _is_plain(node: ast.stmt) -> bool:
    if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    known = () if isinstance(node, ast.ClassDef) else tuple(_DECORATED)
    return all(isinstance(decorator, ast.Name) and decorator.id in known for decorator in node.decorator_list)
