"""What was read out of source files before, by their bytes: trees that share files read each of them only once."""

from __future__ import annotations

import ast
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

__all__ = ["Memory"]

Fact = TypeVar("Fact")


class Memory:
    """Syntax trees, of which the oldest are forgotten, and what was found in them, which takes little room."""

    def __init__(self, limit: int = 1000) -> None:
        """`limit` is the number of syntax trees that are kept: each takes a hundred times the memory of its file."""
        self._limit = limit
        self._trees: OrderedDict[bytes, ast.Module] = OrderedDict()
        self._facts: dict[tuple[Hashable, ...], object] = {}

    def parse(self, data: bytes) -> ast.Module:
        """Return the syntax tree of a file's content. Raises what `ast.parse` raises."""
        tree = self._trees.pop(data, None)
        if tree is None:
            tree = ast.parse(data)
        self._trees[data] = tree
        if len(self._trees) > self._limit:
            self._trees.popitem(last=False)
        return tree

    def recall(self, key: tuple[Hashable, ...], find: Callable[[], Fact]) -> Fact:
        """Return what `find` found when it was first called for `key`, which names what is sought and the content."""
        if key not in self._facts:
            self._facts[key] = find()
        return self._facts[key]  # type: ignore[return-value]  # a key is of one kind of fact
