"""What names stand for while a module's source is read: imported things, its own functions, tables, and texts."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Local", "Reference", "Scope", "Table", "Text", "Value", "evaluate", "merged"]


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


class Scope:
    """Names and what they stand for; a name that is not known here is looked up in the scope around."""

    __slots__ = ("_names", "_outer")

    def __init__(self, outer: Scope | None = None, names: Mapping[str, Value | None] | None = None) -> None:
        self._outer = outer
        self._names = dict(names or {})

    def get(self, name: str) -> Value | None:
        """Return what a name stands for; None if that cannot be told."""
        if name in self._names:
            return self._names[name]
        return self._outer.get(name) if self._outer is not None else None

    def set(self, name: str, value: Value | None) -> None:
        """Bind a name."""
        self._names[name] = value

    def copy(self) -> Scope:
        """Return a scope for one of several ways that the source may take from here."""
        return Scope(self._outer, self._names)

    def update(self, names: Mapping[str, Value | None]) -> None:
        """Bind all of `names`."""
        self._names.update(names)

    def names(self) -> Mapping[str, Value | None]:
        """What is bound in this very scope."""
        return self._names


def merged(scopes: Sequence[Scope]) -> dict[str, Value | None]:
    """Return what names stand for after one of several ways: what differs cannot be told."""
    found: dict[str, Value | None] = {}
    for name in dict.fromkeys(name for scope in scopes for name in scope.names()):
        values = [scope.names()[name] for scope in scopes if name in scope.names()]
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
