"""Where code stands now that is not where it was: the same body, or the one that is most like it."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from .fingerprint import outline, signature
from .target import Target
from .tree import SourceTree

__all__ = ["Place", "elsewhere", "places", "similarity"]

Body = tuple[str, ...]

# A body of one or two statements (`pass`, `return x`) is found in many places, and says nothing of where it went.
_TELLING = 3


@dataclass(frozen=True, slots=True)
class Place:
    """A function or a class in a module, and the marks of the statements inside it."""

    qualname: str
    signature: str
    """Its parameters; empty for a class."""
    body: Body

    @property
    def name(self) -> str:
        """The last part of the qualified name."""
        return self.qualname.rpartition(".")[2]


def places(module: str, tree: SourceTree) -> Sequence[Place]:
    """Return all functions and classes of a module, and those inside its classes; none if there is no source."""
    data = tree.read(module)
    if data is None:
        return ()
    return tree.memory.recall(("places", data), lambda: tuple(_places(tree.parse(module))))


def elsewhere(target: Target, bodies: Collection[Body], packages: Sequence[str], tree: SourceTree) -> Target | None:
    """Return where one of the bodies that a target had at the pins stands now, or None if it is found nowhere.

    It is looked for under any name in the target's own module, and under its own name in the rest of some packages.
    """
    telling = {body for body in bodies if len(body) >= _TELLING}
    for module in _candidates(target, packages, tree) if telling else ():
        for place in places(module, tree):
            if place.body in telling and (module == target.module or place.name == target.name):
                return Target(module, place.qualname)
    return None


def similarity(one: Body, other: Body) -> float:
    """Return which share of the statements two bodies have in common, wherever these stand: from 0 to 1."""
    kept = sum((Counter(one) & Counter(other)).values())
    return kept / max(len(one), len(other), 1)


def _places(tree: ast.Module | None) -> Iterator[Place]:
    waiting: list[tuple[str, ast.stmt]] = [("", node) for node in (tree.body if tree is not None else ())]
    while waiting:
        prefix, node = waiting.pop(0)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            qualname = prefix + node.name
            parameters = "" if isinstance(node, ast.ClassDef) else signature(node)
            yield Place(qualname, parameters, tuple(line.mark for line in outline([node])[1:]))
            if isinstance(node, ast.ClassDef):
                waiting += [(f"{qualname}.", inner) for inner in node.body]


def _candidates(target: Target, packages: Sequence[str], tree: SourceTree) -> Iterator[str]:
    yield target.module
    # Every other class has an __init__: one that moved is looked for with its class.
    name = target.owner.rpartition(".")[2] if target.name.startswith("__") else target.name
    needles = (f"def {name}(".encode(), f"class {name}".encode())
    for package in packages:
        for module in tree.modules_below(package) if package in tree else ():
            data = tree.read(module)
            # Parsing all of a large package would take seconds.
            if module != target.module and data is not None and any(needle in data for needle in needles):
                yield module
