"""The search for code that has moved: by its name, or by its body."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from .definition import outline
from .tree import SourceTree, Target, is_there

Body = tuple[str, ...]

# A body of one or two statements (`pass`, `return x`) occurs in many places, so it identifies nothing.
_TELLING = 3


def namesake(subject: str, packages: Sequence[str], tree: SourceTree) -> str | None:
    """Look for `subject` in another module whose dotted name ends with the last two parts of the subject's module.

    For `old.gkd.trainer:Trainer.fit`, the result could be `new.package.gkd.trainer:Trainer.fit`. Return None if there
    is no such module.
    """
    module, _, qualname = subject.partition(":")
    ending = "." + ".".join(module.split(".")[-2:])
    for other in tree.modules_of(packages):
        found = f"{other}:{qualname}" if qualname else other
        if other != module and other.endswith(ending) and is_there(found, tree):
            return found
    return None


def elsewhere(target: Target, bodies: Collection[Body], packages: Sequence[str], tree: SourceTree) -> Target | None:
    """Return the new location of a target's code, or None if the code is not found. `bodies` are the target's bodies
    at the pins.

    In the target's own module, code is matched under any name. In the rest of `packages`, code is matched only under
    the target's name.
    """
    telling = {body for body in bodies if len(body) >= _TELLING}
    for module in _candidates(target, packages, tree) if telling else ():
        for qualname, body in _bodies(module, tree):
            if body in telling and (module == target.module or qualname.rpartition(".")[2] == target.name):
                return Target(module, qualname)
    return None


def similarity(one: Body, other: Body) -> float:
    """Return the share of statements that two bodies have in common, from 0 to 1. The order of the statements is
    ignored."""
    kept = sum((Counter(one) & Counter(other)).values())
    return kept / max(len(one), len(other), 1)


def _bodies(module: str, tree: SourceTree) -> Sequence[tuple[str, Body]]:
    """Return the functions and classes of a module, and those inside its classes, each with its body."""
    return tree.memory.recall(("bodies", tree.read(module)), lambda: tuple(_read_bodies(tree.parse(module))))


def _read_bodies(tree: ast.Module | None) -> Iterator[tuple[str, Body]]:
    waiting: list[tuple[str, ast.stmt]] = [("", node) for node in (tree.body if tree is not None else ())]
    while waiting:
        prefix, node = waiting.pop(0)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            qualname = prefix + node.name
            yield qualname, tuple(line.mark for line in outline([node])[1:])
            if isinstance(node, ast.ClassDef):
                waiting += [(f"{qualname}.", inner) for inner in node.body]


def _candidates(target: Target, packages: Sequence[str], tree: SourceTree) -> Iterator[str]:
    yield target.module
    # Every class has an __init__, so search for the class instead.
    name = target.owner.rpartition(".")[2] if target.name.startswith("__") else target.name
    needles = (f"def {name}(".encode(), f"class {name}".encode())
    for module in tree.modules_of(packages):
        data = tree.read(module) or b""
        # Parsing a whole large package would take seconds.
        if module != target.module and any(needle in data for needle in needles):
            yield module
