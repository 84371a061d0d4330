"""What was read out of source files before, by their bytes: trees that share files parse each of them only once."""

from __future__ import annotations

import ast
from collections import OrderedDict
from collections.abc import Callable, Sequence

from .definition import Definition, define

__all__ = ["Memory"]


class Memory:
    """Syntax trees and definitions of the files that were read; the oldest syntax trees are forgotten first."""

    def __init__(self, limit: int = 1000) -> None:
        """`limit` is the number of syntax trees that are kept: each takes some hundred times the memory of its file."""
        self._limit = limit
        self._trees: OrderedDict[bytes, ast.Module] = OrderedDict()
        self._definitions: dict[tuple[bytes, str], Definition | None] = {}

    def parse(self, data: bytes) -> ast.Module:
        """Return the syntax tree of a file's content. Raises what `ast.parse` raises."""
        tree = self._trees.pop(data, None)
        if tree is None:
            tree = ast.parse(data)
        self._trees[data] = tree
        if len(self._trees) > self._limit:
            self._trees.popitem(last=False)
        return tree

    def definition(self, data: bytes, qualname: str, nodes: Callable[[], Sequence[ast.stmt]]) -> Definition | None:
        """Return what the file with that content says of a name; `nodes` gives the statements that bind it."""
        key = (data, qualname)
        if key not in self._definitions:
            self._definitions[key] = define(nodes())
        return self._definitions[key]
