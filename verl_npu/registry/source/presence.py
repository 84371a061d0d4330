"""What is there, and what surrounds the place of what is not."""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass

from .definition import bound_names
from .tree import SourceTree, Target


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The innermost thing that holds, or would hold, a subject: a class, a module or a package, with what it names."""

    place: str
    names: str
    """A hash of the names that are bound there."""

    def __str__(self) -> str:
        return f"{self.place} {self.names}"


def package_of(subject: str) -> str:
    """Return the top-level package of a subject: a target, a module, or a file of the configuration."""
    return subject.partition(":")[0].partition("/")[0].partition(".")[0]


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
            names = bound_names([statement for node in classes for statement in node.body])
            return Surroundings(f"{module}:{'.'.join(owners)}", _hash(names))
        owners.pop()
    parsed = tree.parse(module) if qualname else None
    if parsed is not None:
        return Surroundings(module, _hash(bound_names(parsed.body)))
    package = module.rpartition(".")[0]
    while package and not tree.is_package(package):
        package = package.rpartition(".")[0]
    return Surroundings(package, _hash(set(tree.modules_in(package))) if package else "")


def _hash(names: set[str]) -> str:
    return hashlib.blake2b("\0".join(sorted(names)).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
