"""The names and objects that a statement of upstream's source may change."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from verl_npu.registry.source.definition import NAMED
from verl_npu.registry.source.tree import Target

MUTATING = ("add", "append", "clear", "extend", "insert", "pop", "remove", "setdefault", "update")
HARMLESS = ("callable", "hasattr", "isinstance", "issubclass", "len", "type")
"""Built-in functions that change nothing, and whose results no other code keeps."""
MUTATING_CALL = rb"\bglobal [\w, ]*\b%%s\b|\b%%s\.(?:%s)\(" % "|".join(MUTATING).encode()


def leaving(node: ast.AST) -> Iterator[type[ast.AST]]:
    """Yield the AST class of each `yield` expression in `node`, and of each statement in `node` that leaves the
    function or the loop around `node`."""
    if isinstance(node, ast.Return | ast.Break | ast.Continue | ast.Yield | ast.YieldFrom):
        yield type(node)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        return
    loops = isinstance(node, ast.For | ast.AsyncFor | ast.While)
    for each in ast.iter_child_nodes(node):
        yield from (kind for kind in leaving(each) if kind not in (ast.Break, ast.Continue) or not loops)


def local_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[str]:
    """Return the names that are bound only by statements of the function, not by expressions or nested functions.
    Such a name is undefined until one of these statements has been executed."""
    inside = [*ast.walk(function)]
    elsewhere = (ast.NamedExpr, ast.comprehension, ast.Match, ast.Global, ast.Nonlocal, ast.Lambda, ast.FunctionDef)
    others = [each for each in inside if isinstance(each, elsewhere) and each is not function]
    hidden = {getattr(part, "id", "") for each in others for part in ast.walk(each)}
    hidden |= {name for each in others for name in getattr(each, "names", ())}
    hidden |= {each.name for each in inside if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    stored = (each.id for each in inside if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))
    return frozenset(stored) - hidden


class Use(Enum):
    """What a statement does with the value of a name."""

    READ = "reads its attributes"
    CALLED = "calls one of its methods"
    PASSED = "passes it on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """What a statement may change."""

    mutated: Sequence[ast.expr]
    """The expressions whose objects a method changes."""
    called: Sequence[ast.expr]
    """The parts of an object, as in `object.part.method()`, whose methods may change them."""
    used: Sequence[tuple[str, Use]]
    """The names that the statement reads, and what it does with their values."""
    bound: Sequence[ast.expr | str]
    """The attributes, items, and names that the statement binds or deletes."""
    attributes: frozenset[str]
    """The names of the attributes, among them the methods, that the statement reads."""
    leaves: frozenset[type[ast.AST]]
    """The AST classes that `leaving` yields."""


def effects_of(node: ast.AST) -> Effects:
    """Return what a statement may change."""
    inside = list(ast.walk(node))
    mutated: list[ast.expr] = []
    set_ones: list[ast.expr | str] = []
    bound: list[ast.expr | str] = []
    for each in inside:
        match each:
            case ast.Call(func=ast.Attribute(value=of, attr=attr)) if attr in MUTATING:
                mutated.append(of)
            # A frozen dataclass sets its attributes in this way.
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="object"), attr="__setattr__"),
                args=[of, ast.Constant(value=str(name)), *_],
            ):
                set_ones.append(ast.Attribute(of, name))
            case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
                bound.append(each)
            case (
                ast.Name(id=name, ctx=ast.Store() | ast.Del())
                | ast.FunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.alias(asname=str(name))
                | ast.alias(name=name)
            ):
                bound.append(name.partition(".")[0])
    attributes = (each for each in (*set_ones, *inside) if isinstance(each, ast.Attribute))
    owning = {id(each.value) for each in attributes if each.attr not in MUTATING}
    # `get` changes nothing.
    calls = [each.func for each in inside if isinstance(each, ast.Call) and getattr(each.func, "attr", "") != "get"]
    parts = [each.value for each in calls if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Attribute)]
    called = {id(part) for each in calls for part in ast.walk(each)}
    asking = [each for each in inside if isinstance(each, ast.Call) and getattr(each.func, "id", "") in HARMLESS]
    # With a name, `getattr` reads an attribute. A method of upstream's configurations returns any attribute.
    passed = {id(each.func) for each in inside if isinstance(each, ast.Call)}
    returned = {id(each.value) for each in inside if isinstance(each, ast.Return)}
    named: set[str] = set()
    for each in inside:
        match each:
            case ast.Call(func=ast.Name(id="getattr"), args=[_, key, *_]) if id(each) not in passed:
                if isinstance(key, ast.Constant):
                    named.add(str(key.value))
                if isinstance(key, ast.Constant) or id(each) in returned:
                    asking.append(each)
    owning |= {id(argument) for each in asking for argument in each.args}
    used = [
        (each.id, Use.PASSED if id(each) not in owning else Use.CALLED if id(each) in called else Use.READ)
        for each in inside
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    ]
    return Effects(
        mutated=mutated,
        called=parts,
        used=used,
        bound=[*set_ones, *bound],
        attributes=frozenset(
            each.attr
            for each in inside
            if isinstance(each, ast.Attribute) and getattr(each.value, "id", "") != "object"
        )
        | named,
        leaves=frozenset(leaving(node)),
    )


def stored_parts(module: ast.Module | None) -> frozenset[str]:
    """Return the source text of each table that code at module level stores an entry in: `X` for `X[key] = value`."""
    outside = [each for each in module.body if not isinstance(each, NAMED)] if module else []
    stores = (each for node in outside for each in ast.walk(node) if isinstance(each, ast.Subscript))
    return frozenset(ast.unparse(each.value) for each in stores if isinstance(each.ctx, ast.Store))


def changed_in(function: ast.AST) -> Iterator[str]:
    """Yield the source text of each expression that a function assigns to, or that a method call changes. If a local
    name stands for an attribute, the text contains that attribute instead of the local name."""
    inside = list(ast.walk(function))
    names: dict[str, str] = {}
    for each in inside:
        match each:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Attribute() as value):
                first, dot, rest = ast.unparse(value).partition(".")
                names[name] = names.get(first, first) + dot + rest
    for each in inside:
        match each:
            case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
                text = ast.unparse(each)
            case ast.Call(func=ast.Attribute(value=of, attr=attr)) if attr in MUTATING:
                text = ast.unparse(of)
            case _:
                continue
        found = re.match(r"\w+", text)
        yield names.get(found[0], found[0]) + text[found.end() :] if found else text


def stores(function: ast.FunctionDef, registry: Target) -> bool:
    """Return whether a function stores an entry in `registry`, which is a dictionary of a module or of a class."""
    names = {f"{owner}.{registry.name}" for owner in ("cls", registry.owner)} if registry.owner else {registry.name}
    return any(
        isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Store) and ast.unparse(each.value) in names
        for each in ast.walk(function)
    )
