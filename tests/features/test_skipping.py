"""A wrapper that may return without calling upstream's code declares that it relies on that code's source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Sequence

from verl_npu.features import load
from verl_npu.registry.patch import Action


def ends(body: Sequence[ast.stmt], name: str, called: bool = False) -> Iterator[tuple[bool, bool]]:
    """Yield, for each path through some statements, whether it returns, and whether it has used `name` by then."""

    def uses(*nodes: ast.AST | None) -> bool:
        parts = (part for node in nodes if node is not None for part in ast.walk(node))
        return any(isinstance(part, ast.Name) and part.id == name for part in parts)

    for node in body:
        if isinstance(node, ast.Raise):
            return
        if isinstance(node, ast.Return):
            yield True, called or uses(node)
            return
        blocks: list[Sequence[ast.stmt]] = []
        if isinstance(node, ast.If):
            called, blocks = called or uses(node.test), [node.body, node.orelse]
        elif isinstance(node, ast.With | ast.AsyncWith | ast.Try):
            blocks = [node.body]
        inner = [way for block in blocks for way in ends(block, name, called)]
        yield from (way for way in inner if way[0])
        going_on = [used for returns, used in inner if not returns]
        if blocks and not going_on:
            return
        called = all(going_on) if blocks else called or uses(node)
    yield False, called


def may_skip(function: object) -> bool:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))  # type: ignore[arg-type]
    (made,) = tree.body
    assert isinstance(made, ast.FunctionDef | ast.AsyncFunctionDef)
    return not all(used for _, used in ends(made.body, [*made.args.posonlyargs, *made.args.args][0].arg))


def original(original) -> object: ...


def always(call, x):
    return call(x) if x else [call(x)]


def sometimes(call, x):
    if x:
        return None
    return call(x)


def test_ways_that_leave_the_original_out_are_found() -> None:
    assert [may_skip(always), may_skip(sometimes), may_skip(original)] == [False, True, True]


def test_every_wrapper_that_may_skip_upstreams_code_says_so() -> None:
    wrappers = [patch for feature in load() for patch in feature if patch.action is Action.WRAP]
    found = {patch.id for patch in wrappers if may_skip(patch.implementation)}
    assert found - {patch.id for patch in wrappers if patch.may_skip} == set()
    assert len(found) > 30
