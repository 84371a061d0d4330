"""Whether what a patch is about is there; and if it is not, what surrounds the place, and who still uses it."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .definition import bound_names
from .target import Target
from .tree import SourceTree

__all__ = ["Surroundings", "importer", "is_there", "namesake", "package_of", "surroundings"]


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


def importer(module: str, packages: Sequence[str], tree: SourceTree) -> str | None:
    """Return a module of some packages that imports `module`, by what its text says; None if there is none."""
    package, _, name = module.rpartition(".")
    absolute = re.compile(rf"\b{re.escape(module)}\b|\bfrom {re.escape(package)} import .*\b{name}\b".encode())
    relative = re.compile(rf"\bfrom \.{name}\b|\bfrom \. import .*\b{name}\b".encode())
    for other, data in _sources_with(name, packages, tree):
        beside = other == package or other.rpartition(".")[0] == package
        if absolute.search(data) or (beside and relative.search(data)):
            return other
    return None


def namesake(subject: str, packages: Sequence[str], tree: SourceTree) -> str | None:
    """Return what has the name of a subject in a module whose last two names are the same; None if nothing has.

    `recipe.gkd.trainer:Trainer.fit` has one in `verl.experimental.gkd.trainer:Trainer.fit`.
    """
    module, _, qualname = subject.partition(":")
    ending = "." + ".".join(module.split(".")[-2:])
    for package in packages:
        for other in tree.modules_below(package) if package in tree else ():
            found = f"{other}:{qualname}" if qualname else other
            if other != module and other.endswith(ending) and is_there(found, tree):
                return found
    return None


def _sources_with(name: str, packages: Sequence[str], tree: SourceTree) -> Iterator[tuple[str, bytes]]:
    """Return the modules whose source has a name in it: most have not, and a pattern takes a hundred times as long."""
    for package in packages:
        for module in tree.modules_below(package) if package in tree else ():
            data = tree.read(module)
            if data is not None and name.encode() in data:
                yield module, data


def _hash(names: set[str]) -> str:
    return hashlib.blake2b("\0".join(sorted(names)).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
