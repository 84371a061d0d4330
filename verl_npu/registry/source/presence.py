"""Whether what a patch is about is there; if not, what surrounds the place, and where the same code stands now."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .definition import bound_names
from .fingerprint import outline
from .target import Target
from .tree import SourceTree

__all__ = ["Surroundings", "elsewhere", "is_there", "package_of", "surroundings"]

# A body of one or two statements (`pass`, `return x`) is found in many places, and says nothing of where it went.
_TELLING = 3


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The innermost thing that holds, or would hold, a subject: a class, a module or a package, with what it names."""

    place: str
    names: str
    """A hash of the names that are bound there."""

    def __str__(self) -> str:
        return f"{self.place} {self.names}"


def package_of(subject: str) -> str:
    """Return the top-level package of a subject, which is a target or a module itself."""
    return subject.partition(":")[0].partition(".")[0]


def is_there(subject: str, tree: SourceTree) -> bool:
    """Whether the source defines a target, or has a module."""
    if ":" in subject:
        return bool(tree.nodes(Target.parse(subject)))
    return tree.read(subject) is not None


def surroundings(subject: str, tree: SourceTree) -> Surroundings:
    """Return the innermost class, module or package that is there and holds, or would hold, `subject`."""
    module, _, qualname = subject.partition(":")
    owners = qualname.split(".")[:-1]
    while owners:
        found = tree.nodes(Target(module, ".".join(owners)))
        classes = [node for node in found if isinstance(node, ast.ClassDef)]
        if classes:
            names = {name for node in classes for statement in node.body for name in bound_names(statement)}
            return Surroundings(f"{module}:{'.'.join(owners)}", _hash(names))
        owners.pop()
    parsed = tree.parse(module) if qualname else None
    if parsed is not None:
        return Surroundings(module, _hash({name for statement in parsed.body for name in bound_names(statement)}))
    package = module.rpartition(".")[0]
    while package and not tree.is_package(package):
        package = package.rpartition(".")[0]
    return Surroundings(package, _hash(set(tree.modules_in(package))) if package else "")


def elsewhere(target: Target, marks: Sequence[str], tree: SourceTree) -> str | None:
    """Return where the body that `marks` are the outline of stands now, or None if it is found nowhere.

    It is looked for under any name in the target's own module, and under its own name in the rest of its package.
    """
    body = list(marks[1:])
    if len(body) < _TELLING:
        return None
    for module in _candidates(target, tree):
        for qualname, node in _definitions(module, target, tree):
            if _body(node) == body:
                return f"{module}:{qualname}"
    return None


def _candidates(target: Target, tree: SourceTree) -> Iterator[str]:
    yield target.module
    needles = (f"def {target.name}(".encode(), f"class {target.name}".encode())
    for module in tree.modules_below(target.package):
        data = tree.read(module)
        # Parsing all of a large package would take seconds.
        if module != target.module and data is not None and any(needle in data for needle in needles):
            yield module


def _definitions(module: str, target: Target, tree: SourceTree) -> Iterator[tuple[str, ast.stmt]]:
    parsed = tree.parse(module)
    if parsed is None:
        return
    nodes: list[tuple[str, ast.stmt]] = [("", node) for node in parsed.body]
    while nodes:
        prefix, node = nodes.pop()
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if module == target.module or node.name == target.name:
                yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                nodes += [(f"{prefix}{node.name}.", inner) for inner in node.body]


def _body(node: ast.stmt) -> list[str]:
    return [line.mark for line in outline([node])][1:]


def _hash(names: set[str]) -> str:
    return hashlib.blake2b("\0".join(sorted(names)).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
