"""From where a target is reached: the code of its upstream that names it, by that very binding.

A site is a function, a class or a module whose own statements use the target. It is known by a hash of these
statements, of the conditions around them, and of the later ones that assign anew what they assign or are given; names
of local variables do not count. A target stays word for word what it was while a site stops using it, or overwrites
what it returns: a patch of the target then does nothing there.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .definition import Function, meaning_of
from .reader import Reader, Scope, ends_block, is_true
from .tree import SourceTree, Target

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_MOST = 40
"""Sites that a lock keeps of one target, those nearest to it first."""


def find_sites(target: Target, packages: Sequence[str], tree: SourceTree) -> dict[str, str]:
    """Return the hash of each site in some packages, by `module:qualname` or, of a module's own code, `module`."""
    words = [part for part in target.qualname.split(".") if not part.startswith("__")]
    modules = sorted({*tree.modules_with(packages, words), target.module}, key=lambda name: _distance(name, target))
    found: dict[str, str] = {}
    for module in modules:
        found |= sites_in(module, target, tree)
        if len(found) >= _MOST:
            break
    return dict(list(found.items())[:_MOST])


def sites_in(module: str, target: Target, tree: SourceTree) -> Mapping[str, str]:
    """Return the hash of each site in one module."""
    return tree.recall(("sites", module, target), lambda: dict(_sites_in(module, target, tree)))


def _distance(module: str, target: Target) -> tuple[int, str]:
    shared = 0
    for one, other in zip(module.split("."), target.module.split("."), strict=False):
        if one != other:
            break
        shared += 1
    return (-shared if module != target.module else -1000), module


def _sites_in(module: str, target: Target, tree: SourceTree) -> Iterator[tuple[str, str]]:
    parsed = tree.parse(module)
    words = [word for word in {target.name, target.qualname.partition(".")[0]} if not word.startswith("__")]
    lines = tree.lines(module)
    reader = Reader(module, tree)
    for qualname, node in _definitions(parsed.body if parsed is not None else [], ""):
        if Target(module, qualname) == target:
            continue
        text = "\n".join(lines[node.lineno - 1 : node.end_lineno]) if isinstance(node, ast.stmt) else "\n".join(lines)
        if any(word in text for word in words):
            mark = _mark(node, _Use(target, reader))
            if mark:
                yield f"{module}:{qualname}" if qualname else module, mark


def _definitions(statements: Sequence[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield the functions and classes of a module, each with its full name, and the module's own statements."""
    if not prefix:
        yield "", ast.Module([node for node in statements if not isinstance(node, _DEFINITION)], [])
    for node in _flat(statements):
        if isinstance(node, _DEFINITION):
            yield f"{prefix}{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from _definitions(node.body, f"{prefix}{node.name}.")


_DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _flat(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for node in statements:
        yield node
        if not isinstance(node, _DEFINITION):
            for name in _BLOCKS:
                for part in getattr(node, name, ()):
                    yield from _flat(part.body if isinstance(part, ast.ExceptHandler | ast.match_case) else [part])


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement without those inside it, and the conditions around it."""

    head: ast.stmt
    conditions: tuple[ast.expr, ...]


def _statements(body: Sequence[ast.stmt], conditions: tuple[ast.expr, ...] = ()) -> Iterator[_Statement]:
    """Yield the statements of a body that can be executed."""
    for node in body:
        inside = {name: getattr(node, name) for name in _BLOCKS if getattr(node, name, None)}
        head = copy.copy(node)
        for name in inside:
            setattr(head, name, [])
        yield _Statement(head, conditions)
        holds = is_true(node.test) if isinstance(node, ast.If | ast.While) else None
        under = (*conditions, node.test) if isinstance(node, ast.If | ast.While) and holds is None else conditions
        for name, parts in inside.items():
            if isinstance(node, ast.ClassDef) or (holds is False and name == "body"):
                continue
            if holds is True and name == "orelse":
                continue
            for part in parts:
                inner = part.body if isinstance(part, ast.ExceptHandler | ast.match_case) else [part]
                yield from _statements(inner, under)
        if ends_block(node):
            return


class _Use:
    """Whether an expression is a target, in one definition."""

    def __init__(self, target: Target, reader: Reader) -> None:
        self._target = target
        self._class = Target(target.module, target.owner) if target.owner else None
        self.reader = reader

    def holds(self, node: ast.AST, scope: Scope) -> bool:
        """Whether `node` is the target, or the class that has it."""
        if self._class is None:
            return self._names(node, self._target, scope)
        # Of what type an object is no source tells: an attribute of that name counts where its class is known.
        attribute = isinstance(node, ast.Attribute) and node.attr == self._target.name
        return attribute or self._names(node, self._class, scope)

    def _names(self, node: ast.AST, target: Target, scope: Scope) -> bool:
        last = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if not last or not isinstance(getattr(node, "ctx", None), ast.Load):
            return False
        if isinstance(node, ast.Name):
            local = last in scope.assigned or last in scope.parameters
            if scope.reader.module == target.module and not local:
                return last == target.name
        module, _, name = self.reader.dotted(node, scope).rpartition(".")
        place = Target(module, name) if module else None
        if place is None or not scope.reader.tree.covers(place.package):
            return False
        return place == target or (name == last and target in scope.reader.tree.chain(place))


def _mark(node: ast.AST, use: _Use) -> str:
    """Return the hash of what a definition does with the target; empty if it does not use it."""
    body: Sequence[ast.stmt] = getattr(node, "body", ())
    function = node if isinstance(node, Function) else None
    scope = Scope(use.reader) if function is None else use.reader.scope_of(function, "")
    statements = list(_statements([node] if isinstance(node, ast.ClassDef) else body))
    if isinstance(node, ast.ClassDef):
        inner = [part for part in node.body if not isinstance(part, _DEFINITION)]
        statements += _statements(inner)
    places: list[str] = []
    kept: list[ast.AST] = []
    for statement in statements:
        uses = [part for part in ast.walk(statement.head) if use.holds(part, scope)]
        if uses:
            kept += [*statement.conditions, statement.head]
            places += [*_stored(statement.head), *_passed(statement.head, uses)]
        elif any(_is_of(place, places) for place in _stored(statement.head)):
            kept.append(statement.head)
    return meaning_of(kept, function) if places or kept else ""


def _stored(node: ast.stmt) -> list[str]:
    """Return what a statement assigns."""
    targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else []
    if isinstance(node, ast.AnnAssign | ast.AugAssign | ast.For | ast.AsyncFor):
        targets = [node.target]
    return [ast.unparse(part) for target in targets for part in _elements(target)]


def _elements(target: ast.expr) -> Sequence[ast.expr]:
    return target.elts if isinstance(target, ast.Tuple | ast.List) else [target]


def _passed(node: ast.stmt, uses: Sequence[ast.AST]) -> list[str]:
    """Return the names that are passed to the target."""
    calls = [call for call in ast.walk(node) if isinstance(call, ast.Call) and call.func in uses]
    given = [argument for call in calls for argument in (*call.args, *(word.value for word in call.keywords))]
    return [ast.unparse(argument) for argument in given if isinstance(argument, ast.Name | ast.Attribute)]


def _is_of(place: str, places: Sequence[str]) -> bool:
    return any(place == other or place.startswith((f"{other}.", f"{other}[")) for other in places)
