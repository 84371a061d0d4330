"""Functions stay small enough to be read at once, and few lines give up their types."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[4] / "verl_npu"
MOST_LINES_OF_A_FUNCTION = 50

MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if "prebuilt" not in path.parts]


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Each function with the lines of its body: a signature is as long as what it stands for, torch_npu's say."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            yield f"{path.relative_to(PACKAGE)}:{node.name}", node.end_lineno - body[0].lineno + 1 if body else 0


def test_no_function_is_long() -> None:
    long = {name: count for path in MODULES for name, count in functions(path) if count > MOST_LINES_OF_A_FUNCTION}
    assert long == {}


def test_few_lines_give_up_their_types() -> None:
    given_up = sum(
        any(name in line for name in ("Any]", "Any,", "Any)", ": Any", "-> Any", " Any"))
        for path in MODULES
        for line in path.read_text().splitlines()
        if not line.lstrip().startswith(("#", '"""'))
    )
    assert given_up < 300
