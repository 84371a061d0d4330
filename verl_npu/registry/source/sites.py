"""Sites: the code locations in an upstream that use a target.

A site is a function, a class, or a module whose own statements use the target. A class with a method that overrides
the target also has a site. The target may stay unchanged while a site stops using it, or uses it differently. Then a
patch of the target has no effect at that site.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .definition import BLOCKS, NAMED, Function, meaning_fingerprint
from .reader import Reader, Scope, ends_block, is_true
from .tree import SourceTree, Target

OVERRIDES = "overrides"
_MOST = 40
"""The maximum number of sites of one target in a lock. The nearest ones are kept."""
_LARGE = 1000
"""A library with more modules than this is searched only in part."""
_RARE = 12
"""If at most this many modules mention an attribute's name, the name alone shows that it is the target's attribute."""


@dataclass(frozen=True, slots=True)
class Site:
    """How one piece of code uses a target. Sites that differ only in the names of local variables are equal."""

    uses: int = 0
    bare: int = 0
    """The number of names and attributes that the code passes on unchanged as arguments."""
    again: int = 0
    """The number of later statements in the code that overwrite the target's result or arguments."""
    conditions: tuple[str, ...] = ()
    """Hashes of the conditions for using the target, and of the code's decorators."""
    overrides: bool = False
    """Whether the site is a method of a derived class that overrides the target."""

    def reaches_as(self, known: Site) -> bool:
        """Return whether the target has at least the same effects at this site as at the site `known`."""
        more = Counter(self.conditions) - Counter(known.conditions)
        return self.uses >= known.uses and self.bare >= known.bare and self.again <= known.again and not more

    def __str__(self) -> str:
        if self.overrides:
            return OVERRIDES
        return " ".join([f"{self.uses} {self.bare} {self.again}", *self.conditions])

    @classmethod
    def parse(cls, text: str) -> Site:
        """Create a site from its text in a lock. Raises ValueError for any other text."""
        if text == OVERRIDES:
            return cls(overrides=True)
        uses, bare, again, *conditions = text.split()
        return cls(int(uses), int(bare), int(again), tuple(conditions))


def find_sites(target: Target, packages: Sequence[str], tree: SourceTree) -> dict[str, Site]:
    """Return the sites of a target in these packages, with `module:qualname` as the keys. For a module's top-level
    code, the key is `module`."""
    found = overrides(target, packages, tree)
    # Search each package by itself, because another one may be missing here.
    for package in _around(target, packages, tree):
        found |= _sites_of(target, package, tree)
    return found


def _sites_of(target: Target, package: str, tree: SourceTree) -> dict[str, Site]:
    words = [part for part in target.qualname.split(".") if not part.startswith("__")]
    modules = {*tree.modules_with([package], words)}
    modules |= {target.module} if target.module.startswith(f"{package}.") else set()
    if target.owner and words[-1] == target.name:
        for mark in (f".{target.name}", f'"{target.name}"'):
            by_name = list(tree.modules_with([package], [mark]))
            modules |= set(by_name) if len(by_name) <= _RARE else set()
    found: dict[str, Site] = {}
    for module in sorted(modules, key=lambda name: _distance(name, target)):
        found |= sites_in(module, target, tree)
        if len(found) >= _MOST:
            break
    return dict(list(found.items())[:_MOST])


def sites_in(module: str, target: Target, tree: SourceTree) -> Mapping[str, Site]:
    """Return the sites of a target in one module."""
    return tree.recall(("sites", module, target), lambda: dict(_sites_in(module, target, tree)))


def overrides(target: Target, packages: Sequence[str], tree: SourceTree) -> dict[str, Site]:
    """Return the methods of derived classes that override the target without calling it."""
    found: dict[str, Site] = {}
    packages = _around(target, packages, tree)
    waiting = [Target(target.module, target.owner)] if target.owner else []
    derived = tree.recall(("derived", tuple(packages)), lambda: _derived(packages, tree)) if waiting else {}
    seen: set[Target] = set()
    while waiting:
        base = waiting.pop()
        seen.add(base)
        children = derived.get(base.name, ())
        # A class with very many derived classes is overridden somewhere at every revision.
        for module, name in children if len(children) <= _MOST else ():
            if Target(module, name) == base:
                continue
            for node in _classes(module, name, base, tree):
                own = [one for one in node.body if isinstance(one, Function) and one.name == target.name]
                if own and not any(_calls_base(part, base) for one in own for part in ast.walk(one)):
                    found[f"{module}:{name}.{target.name}"] = Site(overrides=True)
                elif not own and Target(module, name) not in seen:
                    waiting.append(Target(module, name))
    return found


def _around(target: Target, packages: Sequence[str], tree: SourceTree) -> Sequence[str]:
    """Return the packages to search for sites. In a large library of models, only the package of one model is
    searched."""
    many = tree.recall(("many", *packages), lambda: sum(1 for _ in tree.modules_of(packages)) > _LARGE)
    return [target.module.rpartition(".")[0] or target.module] if many else packages


_CLASS = re.compile(rb"^[ \t]*class (\w+)\(([^)]*)\)", re.M)
_ALIAS = re.compile(rb"\b(\w+) as (\w+)")


def _derived(packages: Sequence[str], tree: SourceTree) -> dict[str, list[tuple[str, str]]]:
    """Return the classes of all modules, by the last part of the name of each base class. They are found in the
    text."""
    found: dict[str, list[tuple[str, str]]] = {}
    for module in tree.modules_with(packages, ["class "]):
        data = tree.read(module) or b""
        classes = [(match[1].decode(), match[2].decode("utf-8", "replace")) for match in _CLASS.finditer(data)]
        names = {match[2].decode(): match[1].decode() for match in _ALIAS.finditer(data)} if classes else {}
        for name, bases in classes:
            for base in bases.split(","):
                last = base.strip().partition("[")[0].rpartition(".")[2]
                found.setdefault(names.get(last, last), []).append((module, name))
    return found


def _classes(module: str, name: str, base: Target, tree: SourceTree) -> Iterator[ast.ClassDef]:
    """Yield the classes in a module that have this name and are derived from `base`."""
    parsed = tree.parse(module)
    reader = Reader(module, tree)
    use = _Use(base, reader)
    for node in ast.walk(parsed) if parsed is not None else ():
        if isinstance(node, ast.ClassDef) and node.name == name:
            parts = (part for one in node.bases for part in ast.walk(one))
            if any(use.holds(part, Scope(reader)) or _last(part) == base.name for part in parts):
                yield node


def _calls_base(node: ast.AST, base: Target) -> bool:
    """Return whether an expression is an attribute of `super()`, or of the base class by its name."""
    owner = node.value if isinstance(node, ast.Attribute) else None
    return owner is not None and (ast.unparse(owner).startswith("super(") or _last(owner) == base.name)


def _distance(module: str, target: Target) -> tuple[int, str]:
    pairs = zip(module.split("."), target.module.split("."), strict=False)
    shared = next((n for n, (one, other) in enumerate(pairs) if one != other), 99)
    return (-shared if module != target.module else -100), module


def _sites_in(module: str, target: Target, tree: SourceTree) -> Iterator[tuple[str, Site]]:
    parsed = tree.parse(module)
    if parsed is None:
        return
    words = {word for word in (target.name, target.qualname.partition(".")[0]) if not word.startswith("__")}
    names = tree.memory.recall(("aliases", tree.read(module)), lambda: tuple(_aliases(parsed)))
    words |= {other for name, other in names if name in words}
    lines = tree.lines(module)
    reader = Reader(module, tree)
    for qualname, node in _definitions(parsed.body, ""):
        # Calls within the target itself, and in functions inside it, are no sites.
        if Target(module, qualname) == target:
            continue
        text = "\n".join(lines[node.lineno - 1 : node.end_lineno] if isinstance(node, ast.stmt) else lines)
        if any(word in text for word in words):
            site = _site(node, _Use(target, reader))
            if site.uses:
                yield f"{module}:{qualname}" if qualname else module, site


def _aliases(parsed: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the pair (original, alias) for each alias that a module gives to a name. `original` is the last part of
    that name."""
    for node in ast.walk(parsed):
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.name, alias.asname) for alias in node.names if alias.asname)
    for node in parsed.body:
        if isinstance(node, ast.Assign):
            yield from ((_last(node.value), _last(target)) for target in node.targets)


def _last(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _definitions(statements: Sequence[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield the module itself under an empty name, then each of its functions and classes under the qualified name."""
    if not prefix:
        yield "", ast.Module(list(statements), [])
    for node in _flat(statements):
        if isinstance(node, NAMED):
            yield f"{prefix}{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from _definitions(node.body, f"{prefix}{node.name}.")


def _flat(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for node in statements:
        yield node
        if not isinstance(node, NAMED):
            for part in _inside(node):
                yield from _flat([part])


def _inside(node: ast.stmt, names: Sequence[str] = BLOCKS) -> Iterator[ast.stmt]:
    for name in names:
        for part in getattr(node, name, ()):
            yield from part.body if isinstance(part, ast.ExceptHandler | ast.match_case) else [part]


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement, and the conditions for its execution."""

    node: ast.stmt
    conditions: tuple[ast.expr, ...]

    def expressions(self) -> Iterator[ast.AST]:
        """Yield the nodes of the statement, without the nodes of the statements inside it."""
        waiting: list[ast.AST] = [self.node]
        while waiting:
            node = waiting.pop()
            yield node
            inside = (part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr | ast.keyword))
            waiting += inside
            waiting += getattr(node, "generators", ())
            waiting += getattr(node, "items", ()) if isinstance(node, ast.With | ast.AsyncWith) else ()


def _statements(
    body: Sequence[ast.stmt], conditions: tuple[ast.expr, ...] = (), *, inner: bool = True
) -> Iterator[_Statement]:
    """Yield the statements in a body that can be reached. With `inner`, include the statements of functions in it."""
    for node in body:
        yield _Statement(node, conditions)
        test = node.test if isinstance(node, ast.If | ast.While) else None
        holds = is_true(test) if test is not None else None
        under = (*conditions, test) if test is not None and holds is None else conditions
        if inner or not isinstance(node, NAMED):
            first = ("body",) if holds is not False else ()
            rest = ("orelse", "finalbody", "handlers", "cases") if holds is not True else ()
            for names in (first, rest):
                yield from _statements(list(_inside(node, names)), under, inner=inner)
        if ends_block(node):
            return
        if isinstance(node, ast.If) and test is not None and any(map(ends_block, node.body)):
            # The following statements depend on it.
            conditions = (*conditions, test)


@dataclass(slots=True)
class _Use:
    """A recogniser for the uses of a target in one module."""

    target: Target
    reader: Reader
    owner: Target | None = field(init=False)

    def __post_init__(self) -> None:
        self.owner = Target(self.target.module, self.target.owner) if self.target.owner else None

    def holds(self, node: ast.AST, scope: Scope) -> bool:
        """Return whether `node` refers to the target or to the target's class."""
        if self.owner is None:
            return self._names(node, self.target, scope)
        # The source does not show the type of an object, so an attribute counts by its name.
        attribute = isinstance(node, ast.Attribute) and node.attr == self.target.name
        # A call in another process names its method by a string.
        attribute = attribute or (isinstance(node, ast.Constant) and node.value == self.target.name)
        return attribute or self._names(node, self.owner, scope)

    def _names(self, node: ast.AST, target: Target, scope: Scope) -> bool:
        if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
            return False
        if isinstance(node, ast.Name) and node.id not in scope.assigned and node.id not in scope.parameters:
            if self.reader.module == target.module and node.id == target.name:
                return True
            bound = self.reader.tree.nodes(Target(self.reader.module, node.id))
            if len(bound) == 1 and isinstance(bound[0], ast.Assign) and bound[0].value is not node:
                # Another module-level name for the target is rebound together with it.
                return isinstance(bound[0].value, ast.Name | ast.Attribute) and self._names(
                    bound[0].value, target, Scope(self.reader)
                )
        return any(self._is(name, target) for name in self.reader.dotted_ways(node, scope))

    def _is(self, dotted: str, target: Target) -> bool:
        module, _, name = dotted.rpartition(".")
        place = Target(module, name) if module else None
        if place is None or not self.reader.tree.covers(place.package):
            return False
        return place == target or target in self.reader.tree.chain(place)


def _site(node: ast.AST, use: _Use) -> Site:
    """Return how some code uses the target. The code is a definition, or the own statements of a module or class."""
    if isinstance(node, Function):
        scope, statements = use.reader.scope_of(node, ""), list(_statements(node.body))
        around = [meaning_fingerprint([part])[:8] for part in node.decorator_list]
    else:
        around = []
        scope = Scope(use.reader)
        body: list[ast.stmt] = getattr(node, "body", [])
        statements = [one for one in _statements(body, inner=False) if not isinstance(one.node, NAMED)]
        bases = [*node.bases, *node.decorator_list] if isinstance(node, ast.ClassDef) else []
        statements += [_Statement(ast.Expr(part), ()) for part in bases]
    uses, bare, again = 0, 0, 0
    conditions: list[str] = []
    places: set[str] = set()
    for statement in statements:
        parts = list(statement.expressions())
        here = [part for part in parts if use.holds(part, scope)]
        if here:
            calls = [part for part in parts if isinstance(part, ast.Call) and part.func in here]
            given = [one for call in calls for one in (*call.args, *(word.value for word in call.keywords))]
            passed = [ast.unparse(one) for one in given if isinstance(one, ast.Name | ast.Attribute)]
            passed = [name for name in passed if name not in scope.assigned]
            uses += len(here)
            bare += len(passed)
            conditions += [meaning_fingerprint([test])[:8] for test in statement.conditions]
            places |= {*_stored(statement.node), *passed}
        else:
            read = {ast.unparse(part) for part in parts if isinstance(getattr(part, "ctx", None), ast.Load)}
            stored = set(_stored(statement.node))
            if read & places:
                # A value derived from the old one takes its place from here on.
                places |= stored
            else:
                again += len(stored & places)
    return Site(uses, bare, again, tuple(sorted({*conditions, *around})))


def _stored(node: ast.stmt) -> list[str]:
    """Return the names and attributes that a statement assigns."""
    targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else []
    if isinstance(node, ast.AnnAssign | ast.AugAssign):
        targets = [node.target]
    parts = (part for one in targets for part in (one.elts if isinstance(one, ast.Tuple | ast.List) else [one]))
    return [ast.unparse(part) for part in parts if isinstance(part, ast.Name | ast.Attribute)]
