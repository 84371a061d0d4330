"""Whether what a patch is about is there; and if it is not, what surrounds the place, and who still uses it."""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import dataclass

from .definition import bound_names
from .target import Target
from .tree import SourceTree

__all__ = ["Surroundings", "importer", "is_there", "package_of", "surroundings"]


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
    module, _, qualname = subject.partition(":")
    data = tree.read(module)
    if data is None or not qualname:
        return data is not None
    return tree.memory.recall(("there", data, qualname), lambda: bool(tree.nodes(Target(module, qualname))))


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


def importer(module: str, tree: SourceTree) -> str | None:
    """Return a module of the same package that imports `module`, by what its text says; None if there is none."""
    package, _, name = module.rpartition(".")
    absolute = re.compile(rf"\b{re.escape(module)}\b|\bfrom {re.escape(package)} import .*\b{name}\b".encode())
    relative = re.compile(rf"\bfrom \.{name}\b|\bfrom \. import .*\b{name}\b".encode())
    for other in tree.modules_below(package_of(module)):
        data = tree.read(other)
        if data is None or name.encode() not in data:
            continue
        beside = other == package or other.rpartition(".")[0] == package
        if absolute.search(data) or (beside and relative.search(data)):
            return other
    return None


def _hash(names: set[str]) -> str:
    return hashlib.blake2b("\0".join(sorted(names)).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
