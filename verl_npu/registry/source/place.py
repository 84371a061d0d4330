"""Places: things in packages by their full dotted name, found in a source tree as Python would find them."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from .glance import glance
from .target import Target
from .tree import SourceTree

__all__ = ["Place", "dotted", "find_place", "missing_module"]

# An import of an import of an import: no package goes through more modules than this.
_DEPTH = 12


@dataclass(frozen=True, slots=True)
class Place:
    """What a source tree says of a full dotted name."""

    name: str
    """As `module:qualname` if the tree has the module; where it is defined, if it is imported from elsewhere."""
    missing: str = ""
    """The first part of it that is not there; empty if all of it is there, or if the source alone cannot tell."""
    certain: bool = True
    """Whether the source tells that it is there: some modules make their names when they are executed."""


def dotted(target: Target) -> str:
    """Return the full name of a target."""
    return f"{target.module}.{target.qualname}"


def find_place(name: str, tree: SourceTree) -> Place:
    """Look for a dotted name in `tree`. Raises SourceError if a module on the way does not parse."""
    return _find(name, tree, _DEPTH)


def missing_module(name: str, tree: SourceTree) -> str:
    """Return the first part of a module's name that is no module in `tree`; empty if there is none."""
    parts = name.split(".")
    if not tree.covers(parts[0]):
        return ""
    prefixes = [".".join(parts[: length + 1]) for length in range(len(parts))]
    return next((prefix for prefix in prefixes if not _is_module(prefix, tree)), "")


def _find(name: str, tree: SourceTree, depth: int) -> Place:
    parts = name.split(".")
    if not tree.covers(parts[0]) or not depth:
        return Place(name, certain=False)
    if parts[0] not in tree:
        return Place(name, missing=parts[0])
    module, names = parts[0], parts[1:]
    while names and tree.is_package(module) and _is_module(f"{module}.{names[0]}", tree):
        module, names = f"{module}.{names[0]}", names[1:]
    return _in_module(module, names, tree, depth) if names else Place(module)


def _is_module(name: str, tree: SourceTree) -> bool:
    return tree.read(name) is not None or tree.is_package(name)


def _in_module(module: str, names: list[str], tree: SourceTree, depth: int) -> Place:
    place = f"{module}:{'.'.join(names)}"
    data = tree.read(module)
    seen = None if data is None or tree.is_package(module) else glance(data, names)
    if seen is not None:
        return Place(place, missing="" if seen else f"{module}:{names[0]}")
    nodes = tree.nodes(Target(module, names[0]))
    if not nodes:
        if tree.is_package(module):
            # It may have been meant as a module of the package.
            place = f"{module}.{'.'.join(names)}"
        lacking = _lacks(module, names[0], tree)
        stale = place.removesuffix("." + ".".join(names[1:])) if names[1:] else place
        return Place(place, missing=stale if lacking else "", certain=False)
    for node in reversed(nodes):
        if isinstance(node, ast.ImportFrom):
            original = next(alias.name for alias in node.names if (alias.asname or alias.name) == names[0])
            return _find(".".join([tree.imported_module(module, node), original, *names[1:]]), tree, depth - 1)
        if isinstance(node, ast.ClassDef) and names[1:]:
            return _in_class(Target(module, names[0]), names[1:], tree, depth)
    # What an assigned name or a function has as attributes is not written there.
    return Place(place, certain=not names[1:])


def _lacks(module: str, name: str, tree: SourceTree) -> bool:
    """Whether a module certainly has no name that its source does not bind."""
    parsed = tree.parse(module)
    if parsed is None or tree.nodes(Target(module, "__getattr__")):
        return False
    stars = False
    for node in ast.walk(parsed):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            stars = True
            if not _star_lacks(tree.imported_module(module, node), name, tree):
                return False
    # A lazy package imports for type checkers all that it has.
    return stars or not any(map(_makes_names, parsed.body))


def _makes_names(statement: ast.stmt) -> bool:
    """Whether a statement, or one in it, is `sys.modules[__name__] = LazyModule(…)` or `globals()[…] = …`."""
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


def _in_class(owner: Target, names: list[str], tree: SourceTree, depth: int) -> Place:
    target = Target(owner.module, f"{owner.qualname}.{names[0]}")
    nodes = tree.nodes(target)
    place = f"{owner}.{'.'.join(names)}"
    if nodes:
        if names[1:] and isinstance(nodes[-1], ast.ClassDef):
            return _in_class(target, names[1:], tree, depth)
        return Place(place, certain=not names[1:])
    bases = [base for node in tree.nodes(owner) if isinstance(node, ast.ClassDef) for base in node.bases]
    for base in bases:
        inherited = _in_base(owner.module, base, names, tree, depth)
        if inherited is None or not inherited.missing:
            # To assign it to the class changes what the class has, wherever it was inherited from.
            return Place(place, certain=inherited is not None and inherited.certain)
    return Place(place, missing=f"{owner}.{names[0]}")


def _in_base(module: str, base: ast.expr, names: list[str], tree: SourceTree, depth: int) -> Place | None:
    """Look for names in a base class; None if it cannot be told which class that is."""
    if isinstance(base, ast.Subscript):
        base = base.value
    parts = ast.unparse(base).split(".") if isinstance(base, ast.Name | ast.Attribute) else []
    if not parts or not depth:
        return None
    if parts == ["object"]:
        return Place("object", missing=f"object.{names[0]}")
    nodes = tree.nodes(Target(module, parts[0]))
    if not nodes or isinstance(nodes[-1], ast.Import):
        return None
    found = _in_module(module, [*parts, *names], tree, depth - 1)
    owner = _in_module(module, parts, tree, depth - 1)
    return None if owner.missing or not owner.certain else found
