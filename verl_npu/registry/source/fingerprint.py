"""A hash of normalised source: the same on every Python version, unchanged by comments, docstrings and formatting.

`ast.dump` is not used: its output differs between Python versions (3.13 leaves out empty fields). What is walked here
is the tree that all versions from 3.10 on agree on.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["NORMALISER", "Line", "fingerprint", "outline", "signature"]

# Part of every lock: a change in what is hashed must not read as a change of all upstreams.
NORMALISER = 1

# Positions and bookkeeping. `kind` is the u of u"…"; `ctx` follows from the place; `type_comment` is a comment.
_IGNORED_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores", "lineno"})
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def fingerprint(nodes: Iterable[ast.AST]) -> str:
    """32 hexadecimal digits over the normalised form of `nodes`, in order."""
    digest = hashlib.blake2b(digest_size=16)
    for node in nodes:
        for token in _tokens(node):
            digest.update(token.encode("utf-8", "surrogatepass"))
            digest.update(b"\0")
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
        digest = hashlib.blake2b(digest_size=4)
        for token in _tokens(node, frozenset(blocks)):
            digest.update(token.encode("utf-8", "surrogatepass"))
            digest.update(b"\0")
        first = getattr(node, "lineno", 0)
        last = min(inside) - 1 if inside else getattr(node, "end_lineno", first)
        lines.append(Line(f"{depth}:{digest.hexdigest()}", first, max(first, last)))
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
