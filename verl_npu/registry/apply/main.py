"""A hooked module that is run by `python -m`: its hooks run once its definitions are there, before it starts.

`python -m pkg.mod` executes the module's code as `__main__`, and the last statement of that code is the whole job. So
the code gets one more statement, in memory, before each `if __name__ == "__main__":`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from types import CodeType, ModuleType

__all__ = ["instrumented", "reached"]

_hooks: dict[str, Callable[[str, ModuleType], None]] = {}


def instrumented(code: CodeType, source: bytes, name: str, after: Callable[[str, ModuleType], None]) -> CodeType:
    """Return the code of the module `name`, with `after(name, __main__)` called before it starts as a program.

    A module without `if __name__ == "__main__":` at its top level gives its code back as it is.
    """
    tree = ast.parse(source)
    starts = [index for index, node in enumerate(tree.body) if _starts_program(node)]
    if not starts:
        return code
    for index in reversed(starts):
        call = ast.parse(f"__import__({__name__!r}, fromlist=['reached']).reached({name!r})").body[0]
        tree.body.insert(index, ast.copy_location(call, tree.body[index]))
    _hooks[name] = after
    return compile(ast.fix_missing_locations(tree), code.co_filename, "exec", dont_inherit=True)


def reached(name: str) -> None:
    """Called by the code of the module `name` when its definitions are there: runs its hooks if it is the program."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if main is not None and getattr(spec, "name", None) == name:
        _hooks[name](name, main)


def _starts_program(node: ast.stmt) -> bool:
    if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
        return False
    sides = (node.test.left, *node.test.comparators)
    return any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides) and any(
        isinstance(side, ast.Constant) and side.value == "__main__" for side in sides
    )
