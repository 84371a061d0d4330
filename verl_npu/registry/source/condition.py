"""What a statement depends on: whether something has an attribute, which a source tree can tell, or anything else."""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import dataclass

from .scope import Reference, Scope, Text, evaluate

__all__ = ["Condition", "Conditions", "conditions_of"]


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition."""

    text: str
    """As the source has it, for people."""
    place: str = ""
    """What has to be there, by its full name; empty if the condition is of another kind."""
    there: bool = True
    """Whether it has to be there, or must not be."""


Conditions = tuple[Condition, ...]
"""All of them have to hold."""


def conditions_of(test: ast.expr, scope: Scope, given: Collection[str], wanted: bool = True) -> Conditions | None:
    """Return what has to hold for `test` to be as `wanted`: nothing if it always is, None if it never is.

    `given` are the names of functions and constants that are true.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return conditions_of(test.operand, scope, given, not wanted)
    if isinstance(test, ast.BoolOp):
        parts = [conditions_of(value, scope, given, wanted) for value in test.values]
        if isinstance(test.op, ast.And) == wanted:
            return None if None in parts else tuple(c for part in parts if part is not None for c in part)
        possible = [part for part in parts if part is not None]
        if () in possible:
            return ()
        return _other(test, wanted) if len(possible) > 1 else possible[0] if possible else None
    if isinstance(test, ast.Constant):
        return () if bool(test.value) == wanted else None
    called = test.func if isinstance(test, ast.Call) else test
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    if name in given:
        return () if wanted else None
    if isinstance(test, ast.Call) and name == "hasattr" and len(test.args) == 2:
        owner, attribute = (evaluate(argument, scope) for argument in test.args)
        if isinstance(owner, Reference) and isinstance(attribute, Text):
            text = _other(test, wanted)[0].text
            return (Condition(text, f"{owner.place}.{attribute.text}", wanted),)
    return _other(test, wanted)


def _other(test: ast.expr, wanted: bool) -> Conditions:
    text = ast.unparse(test)
    return (Condition(text if wanted else f"not ({text})"),)
