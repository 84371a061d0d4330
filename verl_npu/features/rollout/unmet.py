"""Detection of imports that cannot succeed, before a process fails with an ImportError."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ...registry.source.lookup import missing_module, resolve
from ...registry.source.tree import SourceTree, packages_above

Decide = Callable[[ast.expr], bool | None]
"""A function that returns whether a condition holds, or None if the source does not show that."""


@dataclass(frozen=True, slots=True)
class UnmetImport:
    """An import that cannot succeed."""

    module: str
    """The module that contains the import."""
    line: int
    name: str
    """The full name of the imported module or object."""
    missing: str
    """The first part of that name that does not exist."""


def unmet_imports(
    starts: Iterable[str], importer: str, imported: str, tree: SourceTree, decide: Decide = lambda test: None
) -> Iterator[UnmetImport]:
    """Yield the imports that cannot succeed: names that `importer` imports from the package `imported`, but that this
    package does not define.

    The search starts at the modules in `starts`, which belong to the package `importer`. Only imports that are
    certainly executed count: those at the top of a module, outside of `try`, and not under a condition that `decide`
    leaves open. Raises SourceError if a module that the search reaches cannot be parsed.
    """
    waiting, seen = list(starts), set[str]()
    while waiting:
        module = waiting.pop(0)
        parsed = tree.parse(module) if module not in seen else None
        seen.add(module)
        for statement in _certain_imports(parsed.body, decide) if parsed is not None else ():
            names, modules = _imported(module, statement, tree)
            if modules[0].partition(".")[0] == importer:
                waiting += [part for name in modules for part in (*packages_above(name), name)]
            elif modules[0].partition(".")[0] == imported:
                lacking = ((name, _missing(base, name, tree)) for base, name in names)
                yield from (
                    UnmetImport(module, statement.lineno, name, missing) for name, missing in lacking if missing
                )


def _missing(module: str, name: str, tree: SourceTree) -> str:
    """Return the first part of an imported name that is certainly missing. `__getattr__` in a package provides no
    modules."""
    missing = missing_module(module, tree) or (resolve(name, tree).missing if name != module else "")
    return "" if tree.is_compiled(missing.partition(":")[0]) else missing


def _certain_imports(body: Iterable[ast.stmt], decide: Decide) -> Iterator[ast.Import | ast.ImportFrom]:
    for statement in body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield statement
        elif isinstance(statement, ast.If):
            holds = False if ast.unparse(statement.test).endswith("TYPE_CHECKING") else decide(statement.test)
            if holds is not None:
                yield from _certain_imports(statement.body if holds else statement.orelse, decide)


def _imported(
    module: str, statement: ast.Import | ast.ImportFrom, tree: SourceTree
) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the names that a statement imports, each with its module, and the modules that the statement executes."""
    if isinstance(statement, ast.Import):
        modules = [alias.name for alias in statement.names]
        return [(name, name) for name in modules], modules
    base = tree.imported_module(module, statement)
    names = [f"{base}.{alias.name}" for alias in statement.names if alias.name != "*"] or [base]
    return [(base, name) for name in names], [base, *(name for name in names if tree.read(name) is not None)]
