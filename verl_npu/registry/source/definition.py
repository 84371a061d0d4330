"""What the source says of a name: the statements that bind it, their signature, and a fingerprint of them.

A fingerprint is a hash of normalised source: the same on every Python version, unchanged by comments, docstrings and
formatting. `ast.dump` is not used: its output differs between Python versions (3.13 leaves out empty fields). What is
walked here is the tree that all versions from 3.10 on agree on.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

# Part of every lock: a change in what is hashed must not read as a change of all upstreams.
NORMALISER = 1


# Positions and bookkeeping. `kind` is the u of u"…"; `ctx` follows from the place; `type_comment` is a comment.
_IGNORED_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores", "lineno"})
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def fingerprint(nodes: Iterable[ast.AST]) -> str:
    """32 hexadecimal digits over the normalised form of `nodes`, in order."""
    return _hash((token for node in nodes for token in _tokens(node)), 16)


def _hash(tokens: Iterable[str], size: int) -> str:
    digest = hashlib.blake2b(digest_size=size)
    for token in tokens:
        digest.update(token.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Line:
    """One statement of an outline, without the statements inside it."""

    mark: str
    """Its depth and the hash of its normalised form."""
    first: int
    last: int
    """Its lines in the source; of a compound statement, those of its head."""


def outline(nodes: Iterable[ast.AST], depth: int = 0) -> list[Line]:
    """The statements of `nodes` one by one: two revisions can be compared by it when one is known by hashes alone."""
    lines = []
    for node in nodes:
        blocks = {name: getattr(node, name) for name in _BLOCKS if isinstance(getattr(node, name, None), list)}
        inside = [part.lineno for block in blocks.values() for part in block if hasattr(part, "lineno")]
        if "body" in blocks and isinstance(node, _DOCUMENTED):
            blocks["body"] = _without_docstring(blocks["body"])
        first = getattr(node, "lineno", 0)
        last = min(inside) - 1 if inside else getattr(node, "end_lineno", first)
        lines.append(Line(f"{depth}:{_hash(_tokens(node, frozenset(blocks)), 4)}", first, max(first, last)))
        lines += [line for block in blocks.values() for line in outline(block, depth + 1)]
    return lines


def _tokens(value: object, without: frozenset[str] = frozenset()) -> Iterator[str]:
    if isinstance(value, ast.JoinedStr):
        yield from _f_string_tokens(value)
    elif isinstance(value, ast.AST):
        yield f"({type(value).__name__}"
        for name in value._fields:
            field = getattr(value, name, None)
            # An absent field, a None and an empty list are one and the same: `type_params` exists from 3.12 on.
            if name in _IGNORED_FIELDS or name in without or field is None or field == []:
                if isinstance(value, ast.Constant) and name == "value":
                    yield "None"
                continue
            if name == "body" and isinstance(value, _DOCUMENTED):
                field = _without_docstring(field)
            yield f".{name}"
            yield from _tokens(field)
        yield ")"
    elif isinstance(value, list):
        yield f"[{len(value)}"
        for item in value:
            yield from _tokens(item)
        yield "]"
    else:
        yield f"{type(value).__name__}={value!r}"


def _f_string_tokens(node: ast.JoinedStr) -> Iterator[str]:
    # Python 3.12 parses f-strings anew: neighbouring literal parts may be split or joined, and empty ones kept or not.
    yield "(JoinedStr"
    literal = ""
    for part in node.values:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            literal += part.value
            continue
        if literal:
            yield f"str={literal!r}"
            literal = ""
        yield from _tokens(part)
    if literal:
        yield f"str={literal!r}"
    yield ")"


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return body[1:]
    return body


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The parameters of `node` by name, kind and default, for example `(config, *, rank=0, group=...)`.

    A default that is no constant is shown as `...`: how it is spelled is the fingerprint's business.
    """
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    no_default: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    parts = [_parameter(a, d) for a, d in zip(positional, [*no_default, *arguments.defaults], strict=True)]
    if arguments.posonlyargs:
        parts.insert(len(arguments.posonlyargs), "/")
    if arguments.vararg is not None:
        parts.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += [_parameter(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    if arguments.kwarg is not None:
        parts.append(f"**{arguments.kwarg.arg}")
    return f"({', '.join(parts)})"


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    if default is None:
        return argument.arg
    return f"{argument.arg}={default.value!r}" if isinstance(default, ast.Constant) else f"{argument.arg}=..."


class Kind(str, Enum):
    """How a name comes to be in its module or class."""

    FUNCTION = "function"
    COROUTINE = "coroutine function"
    CLASS = "class"
    PROPERTY = "property"
    STATICMETHOD = "staticmethod"
    CLASSMETHOD = "classmethod"
    ASSIGNED = "assigned"
    IMPORTED = "imported"

    def __str__(self) -> str:
        return self.value


_DECORATED = {"property": Kind.PROPERTY, "staticmethod": Kind.STATICMETHOD, "classmethod": Kind.CLASSMETHOD}


@dataclass(frozen=True, slots=True)
class Definition:
    """What the source says of a target."""

    kind: Kind
    signature: str
    fingerprint: str
    outline: tuple[str, ...]
    """The marks of its statements, in order."""
    plain: bool
    """Whether only definitions of that kind bind it, and no decorator may have made something else of them."""


def define(nodes: Sequence[ast.stmt]) -> Definition | None:
    """Return what the statements that bind a name say of it; None if there are none."""
    if not nodes:
        return None
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return Definition(
        kind=_kind(nodes[-1]),
        signature=" | ".join(dict.fromkeys(signature(node) for node in functions)),
        fingerprint=fingerprint(nodes),
        outline=tuple(line.mark for line in outline(nodes)),
        plain=all(_is_plain(node) for node in nodes) and len({_kind(node) for node in nodes}) == 1,
    )


_BINDING = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
    ast.Assign,
    ast.AnnAssign,
    ast.AugAssign,
)


def bindings(statements: Sequence[ast.stmt], name: str) -> Iterator[ast.stmt]:
    """Return the statements of a scope that bind `name`, in order; both branches of an `if` count."""
    for statement in _flat(statements):
        if name in _bound(statement):
            yield _import_of(statement, name) if isinstance(statement, ast.Import | ast.ImportFrom) else statement


def bound_names(statements: Sequence[ast.stmt]) -> set[str]:
    """Return the names that the statements of a scope bind; both branches of an `if` count."""
    return {name for statement in _flat(statements) for name in _bound(statement)}


def _flat(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Return the statements that may bind names; those in an `if`, `try`, `with` or loop share the scope."""
    for statement in statements:
        if isinstance(statement, _BINDING):
            yield statement
        else:
            for part in ("body", "orelse", "finalbody"):
                yield from _flat(getattr(statement, part, []))
            for handler in getattr(statement, "handlers", []):
                yield from _flat(handler.body)


def _bound(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [_local_name(alias) for alias in statement.names]
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
    return []


def _local_name(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _import_of(statement: ast.Import | ast.ImportFrom, name: str) -> ast.stmt:
    # What else the same line imports is no part of this name's definition.
    names = [alias for alias in statement.names if _local_name(alias) == name]
    if isinstance(statement, ast.Import):
        return ast.copy_location(ast.Import(names), statement)
    return ast.copy_location(ast.ImportFrom(statement.module, names, statement.level), statement)


def used_names(statements: Iterable[ast.AST]) -> frozenset[str]:
    """Return all that is written in some statements: names, attributes, keywords, imports and strings."""
    return frozenset(name for statement in statements for node in ast.walk(statement) for name in _names(node))


def _names(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Attribute):
        return {node.attr}
    if isinstance(node, ast.keyword | ast.arg):
        return {node.arg} if node.arg else set()
    if isinstance(node, ast.alias):
        return {*node.name.split("."), node.asname or ""} | {node.name}
    if isinstance(node, ast.ImportFrom):
        return {node.module or "", *(node.module or "").split(".")}
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    return set()


def _kind(node: ast.stmt) -> Kind:
    if isinstance(node, ast.ClassDef):
        return Kind.CLASS
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Name) and decorator.id in _DECORATED:
                return _DECORATED[decorator.id]
        return Kind.COROUTINE if isinstance(node, ast.AsyncFunctionDef) else Kind.FUNCTION
    return Kind.IMPORTED if isinstance(node, ast.Import | ast.ImportFrom) else Kind.ASSIGNED


def _is_plain(node: ast.stmt) -> bool:
    if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    known = () if isinstance(node, ast.ClassDef) else tuple(_DECORATED)
    return all(isinstance(decorator, ast.Name) and decorator.id in known for decorator in node.decorator_list)
