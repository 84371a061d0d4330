"""Lookup of full dotted names in a source tree. It follows imports and classes."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

from .tree import SourceTree, Target, package_of, packages_above

# The number of imports to follow; no package passes a name through more modules.
_DEPTH = 12
_MAKES_NAMES = (b"import *", b"__getattr__", b"sys.modules[", b"globals()")


def _glance(data: bytes, names: Sequence[str]) -> bool | None:
    """Return whether a module binds `names[0]`, which is a class that binds `names[1]`, and so on, or None if the text
    must be parsed to decide this.

    The result is True only for a `def` or `class` at the beginning of a line. It is False only if the text does not
    contain `names[0]` and no code that might create this name.
    """
    if names[0].encode() not in data:
        return None if any(mark in data for mark in _MAKES_NAMES) else False
    scope = data
    for depth, name in enumerate(names):
        found = re.search(rb"^%s(?:def|class|async def) %s\b[^\n]*\n" % (b"    " * depth, name.encode()), scope, re.M)
        if found is None:
            return None
        if depth < len(names) - 1 and not found[0].lstrip().startswith(b"class"):
            return None
        # The body ends at the next line that is indented less.
        end = re.compile(rb"^(?! {%d}|[ \t]*(?:#|\n|\)))" % (4 * depth + 4), re.M).search(scope, found.end())
        scope = scope[found.end() : end.start() if end is not None else len(scope)]
    return True


@dataclass(frozen=True, slots=True)
class Resolved:
    """The result of the lookup of a full dotted name."""

    name: str
    """The name as `module:qualname`, if the tree has the module. For an imported name, this is the name at its
    definition."""
    missing: str = ""
    """The first part of the name that does not exist. Empty if the whole name exists, or if the source does not show
    it."""
    certain: bool = True
    """Whether the source proves that the name exists. Some modules make their names only when they are executed."""


def missing_module(name: str, tree: SourceTree) -> str:
    """Return the shortest prefix of a module's name that is not a module in `tree`, or an empty string if all prefixes
    are modules."""
    if not tree.covers(package_of(name)):
        return ""
    return next((prefix for prefix in (*packages_above(name), name) if not _is_module(prefix, tree)), "")


def resolve(name: str, tree: SourceTree, depth: int = _DEPTH) -> Resolved:
    """Look up a dotted name in `tree`, and follow at most `depth` imports. Raises SourceError if a module cannot be
    parsed."""
    parts = name.split(".")
    if not tree.covers(parts[0]) or not depth:
        return Resolved(name, certain=False)
    if parts[0] not in tree:
        return Resolved(name, missing=parts[0])
    module, names = parts[0], parts[1:]
    while names and tree.is_package(module) and _is_module(f"{module}.{names[0]}", tree):
        module, names = f"{module}.{names[0]}", names[1:]
    return _in_module(module, names, tree, depth) if names else Resolved(module)


def _is_module(name: str, tree: SourceTree) -> bool:
    return tree.read(name) is not None or tree.is_package(name)


def _in_module(module: str, names: list[str], tree: SourceTree, depth: int) -> Resolved:
    place = f"{module}:{'.'.join(names)}"
    data = tree.read(module)
    seen = None if data is None or tree.is_package(module) else _glance(data, names)
    if seen is not None:
        return Resolved(place, missing="" if seen else f"{module}:{names[0]}")
    nodes = tree.nodes(Target(module, names[0]))
    if not nodes:
        if tree.is_package(module):
            # The name may have been meant as a module of the package.
            place = f"{module}.{'.'.join(names)}"
        lacking = _lacks(module, names[0], tree)
        stale = place.removesuffix("." + ".".join(names[1:])) if names[1:] else place
        return Resolved(place, missing=stale if lacking else "", certain=False)
    for node in reversed(nodes):
        if isinstance(node, ast.ImportFrom):
            original = next(alias.name for alias in node.names if (alias.asname or alias.name) == names[0])
            return resolve(".".join([tree.imported_module(module, node), original, *names[1:]]), tree, depth - 1)
        if isinstance(node, ast.ClassDef) and names[1:]:
            return _in_class(Target(module, names[0]), names[1:], tree, depth)
    # The source does not show the attributes of an assigned name or a function.
    return Resolved(place, certain=not names[1:])


def _lacks(module: str, name: str, tree: SourceTree) -> bool:
    """Return whether a module is certain to lack a name that its source does not bind."""
    parsed = tree.parse(module)
    if parsed is None or tree.nodes(Target(module, "__getattr__")):
        return False
    stars = False
    for node in ast.walk(parsed):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            stars = True
            if not _star_lacks(tree.imported_module(module, node), name, tree):
                return False
    # A lazy package imports all of its names for type checkers.
    return stars or not any(map(_makes_names, parsed.body))


def _makes_names(statement: ast.stmt) -> bool:
    """Return whether a statement contains `sys.modules[__name__] = LazyModule(…)` or `globals()[…] = …`."""
    assigned = [node.targets[0] for node in ast.walk(statement) if isinstance(node, ast.Assign)]
    return any(
        isinstance(target, ast.Subscript) and ast.unparse(target.value) in ("sys.modules", "globals()")
        for target in assigned
    )


def _star_lacks(module: str, name: str, tree: SourceTree) -> bool:
    if not tree.covers(module.partition(".")[0]) or tree.is_package(module):
        return False
    parsed = tree.parse(module)
    if parsed is None:
        return True
    stars = any(isinstance(n, ast.ImportFrom) and any(alias.name == "*" for alias in n.names) for n in parsed.body)
    return not stars and not tree.nodes(Target(module, name))


def _in_class(owner: Target, names: list[str], tree: SourceTree, depth: int) -> Resolved:
    target = Target(owner.module, f"{owner.qualname}.{names[0]}")
    nodes = tree.nodes(target)
    place = f"{owner}.{'.'.join(names)}"
    if nodes:
        if names[1:] and isinstance(nodes[-1], ast.ClassDef):
            return _in_class(target, names[1:], tree, depth)
        return Resolved(place, certain=not names[1:])
    bases = [base for node in tree.nodes(owner) if isinstance(node, ast.ClassDef) for base in node.bases]
    for base in bases:
        inherited = _in_base(owner.module, base, names, tree, depth)
        if inherited is None or not inherited.missing:
            # Assigning to the class takes effect, wherever the attribute was inherited from.
            return Resolved(place, certain=inherited is not None and inherited.certain)
    return Resolved(place, missing=f"{owner}.{names[0]}")


def _in_base(module: str, base: ast.expr, names: list[str], tree: SourceTree, depth: int) -> Resolved | None:
    """Look up names in a base class. Return the result, or None if the base class cannot be found."""
    if isinstance(base, ast.Subscript):
        base = base.value
    parts = ast.unparse(base).split(".") if isinstance(base, ast.Name | ast.Attribute) else []
    if not parts or not depth:
        return None
    if parts == ["object"]:
        return Resolved("object", missing=f"object.{names[0]}")
    nodes = tree.nodes(Target(module, parts[0]))
    if not nodes or isinstance(nodes[-1], ast.Import):
        return None
    found = _in_module(module, [*parts, *names], tree, depth - 1)
    owner = _in_module(module, parts, tree, depth - 1)
    return None if owner.missing or not owner.certain else found
