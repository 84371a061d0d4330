"""The definition of a name in source: the statements that bind the name, their signature, and their fingerprint.

A fingerprint is a hash of normalised source. It is the same on every Python version. Comments, docstrings, and
formatting do not change it. A second fingerprint also ignores changes of wording: annotations, the spelling of
defaults, the names of variables, and lines that only log.

`ast.dump` is not used, because its output differs between Python versions (3.13 omits empty fields). This module reads
only those parts of the syntax tree that are the same in all versions from 3.10 on.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

# Part of every lock, so that a change of the hashed form does not look like a change of all upstreams.
NORMALISER = 2


# Positions and bookkeeping. `kind` is the u of u"…", `ctx` follows from the place, and `type_comment` is a comment.
_IGNORED_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores", "lineno"})
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""The fields of a statement that hold inner statements."""
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

Function = ast.FunctionDef | ast.AsyncFunctionDef
NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
"""The statements that define a function or a class."""
_NONE: Mapping[str, object] = MappingProxyType({})


def fingerprint(nodes: Iterable[ast.AST]) -> str:
    """Return 32 hexadecimal digits: a hash of the normalised form of `nodes`, in order."""
    return _hash((token for node in nodes for token in _tokens(node)), 16)


def _hash(tokens: Iterable[str], size: int) -> str:
    digest = hashlib.blake2b(digest_size=size)
    for token in tokens:
        digest.update(token.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Line:
    """One statement in an outline. The statements inside it have lines of their own."""

    mark: str
    """The depth of the statement, and a hash of its normalised form."""
    first: int
    last: int
    """The last line of the statement in the source. For a compound statement, the last line of its head."""


def outline(nodes: Iterable[ast.AST], depth: int = 0) -> list[Line]:
    """For each statement of `nodes`, return one line that contains the statement's hash, so that two revisions can be
    compared statement by statement."""
    lines = []
    for node in nodes:
        blocks = {name: getattr(node, name) for name in BLOCKS if isinstance(getattr(node, name, None), list)}
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
            # Treat absent, None, and empty fields alike: `type_params` exists only since 3.12.
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
    # Python 3.12 parses f-strings differently: it may split or join literal parts, and keep or drop empty ones.
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


# Meaning without wording.


def meaning_fingerprint(nodes: Iterable[ast.AST]) -> str:
    """Return 32 hexadecimal digits: a hash of what `nodes` do. The hash does not depend on wording, such as
    docstrings, log messages, or names of local variables.

    A function's parameters are excluded, too, because `fits` compares them.
    """
    return _hash((token for node in nodes for token in _meaning_tokens(node, None)), 16)


def _meaning_tokens(value: object, own: dict[str, str] | None) -> Iterator[str]:
    """Yield tokens for the meaning of a part of a syntax tree. In a function, `own` numbers its variables by their
    first use."""
    if isinstance(value, Function) and own is None:
        yield f"({function_kind(value)} {value.name} {' '.join(map(decoration, value.decorator_list))}"
        yield from _meaning_tokens(_without_docstring(value.body), dict.fromkeys(_own_names(value), ""))
    elif (
        isinstance(value, ast.Name | ast.arg | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and own is not None
    ):
        yield from _renamed(value, own)
    elif isinstance(value, ast.AnnAssign) and value.value is not None and value.simple:
        yield from _meaning_tokens(ast.Assign([value.target], value.value), own)
    elif isinstance(value, list):
        kept = [item for item in value if not _is_only_wording(item)]
        yield f"[{len(kept)}"
        for item in kept:
            yield from _meaning_tokens(item, own)
    elif isinstance(value, ast.AST) and not isinstance(value, ast.JoinedStr):
        yield f"({type(value).__name__}"
        for name in value._fields:
            field = getattr(value, name, None)
            if name in _IGNORED_FIELDS or name in ("annotation", "returns") or field is None or field == []:
                continue
            if name == "body" and isinstance(value, _DOCUMENTED):
                field = _without_docstring(field)
            yield f".{name}"
            yield from _meaning_tokens(field, own)
    elif isinstance(value, ast.JoinedStr):
        for part in value.values:
            yield from _meaning_tokens(part, own)
    else:
        yield f"{type(value).__name__}={value!r}"


def _renamed(value: ast.Name | ast.arg | Function | ast.ClassDef, own: dict[str, str]) -> Iterator[str]:
    field = {ast.Name: "id", ast.arg: "arg"}.get(type(value), "name")
    name: str = getattr(value, field)
    if own.get(name) == "":
        own[name] = f"own {sum(map(bool, own.values()))}"
    yield f"({type(value).__name__}={own.get(name, name)}"
    for other in value._fields:
        inner = getattr(value, other, None)
        if other not in (field, "annotation", "returns", *_IGNORED_FIELDS) and inner not in (None, []):
            if other == "body" and isinstance(value, _DOCUMENTED):
                inner = _without_docstring(value.body)
            yield f".{other}"
            yield from _meaning_tokens(inner, own)


def _own_names(function: Function) -> list[str]:
    """Return the variables of a function and of its inner functions, without its parameters."""
    arguments = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
    shared = {name for n in ast.walk(function) if isinstance(n, ast.Global | ast.Nonlocal) for name in n.names}
    found: dict[str, None] = {}
    for statement in function.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                found[node.id] = None
            elif isinstance(node, ast.arg):
                found[node.arg] = None
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found[node.name] = None
    return [name for name in found if name not in arguments | shared]


_LOGS = frozenset({"debug", "info", "warning", "warn", "error", "critical", "exception", "log"})


def is_log(node: ast.expr) -> bool:
    """Return whether an expression only prints or logs: a call to `print`, a warning, or a call to a logger."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id in ("print", "warn")
    words = ast.unparse(node.func).lower().split(".")
    said = words[-1] in _LOGS and any("log" in word or word == "warnings" for word in words[:-1])
    return said or words[-2:-1] in (["logger"], ["_logger"], ["logging"], ["logging()"], ["log"])


def _is_only_wording(item: object) -> bool:
    """Return whether a statement only prints or logs, or is an annotation without a value."""
    if isinstance(item, ast.AnnAssign):
        return item.value is None
    call = item.value if isinstance(item, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return False
    # A function with such a name only logs if its result is not used.
    return is_log(call) or (isinstance(call.func, ast.Name) and call.func.id.startswith("log_"))


def decoration(decorator: ast.expr) -> str:
    """Describe a decorator with its arguments. String arguments are omitted, because a string is usually a label for
    logs, which does not change what the decorator does."""
    if not isinstance(decorator, ast.Call):
        return f"@{_short(decorator)}"
    return f"@{_short(decorator.func)}({_spelled_arguments(decorator)})"


def _spelled_arguments(call: ast.Call) -> str:
    given = [_spelling(argument) for argument in call.args if not _is_text(argument)]
    given += [f"{word.arg or '**'}={_spelling(word.value)}" for word in call.keywords if not _is_text(word.value)]
    return ", ".join(given)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _decorator(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node


def _short(node: ast.expr) -> str:
    # `functools.wraps`, or just `wraps` if that is imported.
    return node.attr if isinstance(node, ast.Attribute) else _spelling(node)


def _spelling(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_spelling(node.value)}.{node.attr}"
    if isinstance(node, ast.Constant):
        return repr(node.value)
    if isinstance(node, ast.Call):
        return f"{_spelling(node.func)}({_spelled_arguments(node)})"
    return f"<{fingerprint([node])[:8]}>"


# Signatures.


def signature(node: Function, constants: Mapping[str, object] = _NONE) -> str:
    """Return the parameters of `node` by name, kind, and default, for example `(config, *, rank=0, group=...)`.

    A default is shown as `...` unless it is a literal or one of the module's `constants`. A change in any other
    default affects only the definition's fingerprint.
    """
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    no_default: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    parts = [_parameter(a, d, constants) for a, d in zip(positional, [*no_default, *arguments.defaults], strict=True)]
    if arguments.posonlyargs:
        parts.insert(len(arguments.posonlyargs), "/")
    if arguments.vararg is not None:
        parts.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += [_parameter(a, d, constants) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    if arguments.kwarg is not None:
        parts.append(f"**{arguments.kwarg.arg}")
    return f"({', '.join(parts)})"


def _parameter(argument: ast.arg, default: ast.expr | None, constants: Mapping[str, object]) -> str:
    if default is None:
        return argument.arg
    if isinstance(default, ast.Name) and default.id in constants:
        return f"{argument.arg}={constants[default.id]!r}"
    return f"{argument.arg}={default.value!r}" if isinstance(default, ast.Constant) else f"{argument.arg}=..."


def constants_of(module: ast.Module) -> dict[str, object]:
    """Return the names in a module that are assigned exactly once, with a literal as the value."""
    assigned = [(s.targets[0], s.value) for s in module.body if isinstance(s, ast.Assign) and len(s.targets) == 1]
    found = {t.id: v.value for t, v in assigned if isinstance(t, ast.Name) and isinstance(v, ast.Constant)}
    return {name: value for name, value in found.items() if len(list(bindings(module.body, name))) == 1}


def fits(found: str, known: str, restated: Collection[str] = ()) -> bool:
    """Return whether a wrapper that was written for the signature `known` still works if the signature of upstream's
    function is now `found`.

    Each of the two arguments contains one or more signatures. Different defaults are ignored, except the defaults of
    parameters that have their own defaults in the wrapper (`restated`). Additional optional parameters are ignored if
    they are at the end or keyword-only.
    """
    return found == known or all(
        any(_fits(one, other, restated) for other in _parsed_signatures(known)) for one in _parsed_signatures(found)
    )


def _parsed_signatures(signatures: str) -> list[ast.arguments]:
    parsed = (ast.parse(f"def _{text}: ...").body[0] for text in filter(None, signatures.split(" | ")))
    return [node.args for node in parsed if isinstance(node, ast.FunctionDef)]


def _fits(found: ast.arguments, known: ast.arguments, restated: Collection[str]) -> bool:
    here, there = _defaults(found), _defaults(known)
    if any(here.get(name) != there[name] for name in restated if name in there):
        return False
    return _accepts_same_calls(found, known)


def _accepts_same_calls(found: ast.arguments, known: ast.arguments) -> bool:
    here, there = _positional(found), _positional(known)
    more = here[len(there) :]
    if here[: len(there)] != there or not all(optional for _, optional in more) or (more and known.vararg is not None):
        return False
    if len(found.posonlyargs) != len(known.posonlyargs) or (found.vararg is None) is not (known.vararg is None):
        return False
    if known.kwarg is not None and found.kwarg is None:
        return False
    keywords, wanted = _keywords(found), _keywords(known)
    new = [optional for name, optional in keywords.items() if name not in wanted]
    return all(new) and all(keywords.get(name) == optional for name, optional in wanted.items())


def _defaults(arguments: ast.arguments) -> dict[str, str]:
    every = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(every[::-1], arguments.defaults[::-1], strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    return {argument.arg: fingerprint([default]) for argument, default in pairs if default is not None}


def _positional(arguments: ast.arguments) -> list[tuple[str, bool]]:
    every = [*arguments.posonlyargs, *arguments.args]
    required = len(every) - len(arguments.defaults)
    return [(argument.arg, number >= required) for number, argument in enumerate(every)]


def _keywords(arguments: ast.arguments) -> dict[str, bool]:
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {argument.arg: default is not None for argument, default in pairs}


class Kind(str, Enum):
    """The kind of statement that binds a name in its module or class."""

    FUNCTION = "function"
    COROUTINE = "coroutine function"
    GENERATOR = "generator function"
    ASYNC_GENERATOR = "asynchronous generator function"
    CONTEXT_MANAGER = "context manager"
    REMOTE = "remote function or class"
    CLASS = "class"
    PROPERTY = "property"
    CACHED_PROPERTY = "cached property"
    STATICMETHOD = "staticmethod"
    CLASSMETHOD = "classmethod"
    ASSIGNED = "assigned"
    IMPORTED = "imported"

    def __str__(self) -> str:
        return self.value


_DESCRIPTORS = {"property": Kind.PROPERTY, "staticmethod": Kind.STATICMETHOD, "classmethod": Kind.CLASSMETHOD}
_DECORATED = {
    **_DESCRIPTORS,
    # A property with a setter or deleter is defined in parts, and the last part still defines the property.
    **dict.fromkeys(("getter", "setter", "deleter"), Kind.PROPERTY),
    "cached_property": Kind.CACHED_PROPERTY,
    "contextmanager": Kind.CONTEXT_MANAGER,
    "asynccontextmanager": Kind.CONTEXT_MANAGER,
    "remote": Kind.REMOTE,
}


def function_kind(node: Function) -> Kind:
    """Return the kind of function that `node` defines, ignoring its decorators."""
    yields = any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in _within(node.body))
    if isinstance(node, ast.AsyncFunctionDef):
        return Kind.ASYNC_GENERATOR if yields else Kind.COROUTINE
    return Kind.GENERATOR if yields else Kind.FUNCTION


def _within(statements: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes in these statements. Nodes inside inner functions or classes are skipped."""
    waiting = list(statements)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


@dataclass(frozen=True, slots=True)
class Definition:
    """A target as its source defines it."""

    kind: Kind
    signature: str
    fingerprint: str
    outline: tuple[str, ...]
    """The marks of the target's statements, in order."""
    decorators: tuple[str, ...]
    """The names of the decorators of the target's last statement."""
    plain: bool
    """Whether all of the target's statements are definitions of the same kind, without decorators that may change the
    object."""


def define(nodes: Sequence[ast.stmt], constants: Mapping[str, object] = _NONE) -> Definition | None:
    """Return the definition of a name that is bound by the statements `nodes`, or None if `nodes` is empty. Default
    values may refer to `constants`, the constants of the module.
    """
    if not nodes:
        return None
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return Definition(
        kind=_kind(nodes[-1]),
        signature=" | ".join(dict.fromkeys(signature(node, constants) for node in functions)),
        fingerprint=fingerprint(nodes),
        outline=tuple(line.mark for line in outline(nodes)),
        decorators=tuple(_short(_decorator(d)) for d in getattr(nodes[-1], "decorator_list", ())),
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
    """Yield the statements in a scope that bind `name`, in order. For an `if`, both branches are included."""
    for statement in _flat(statements):
        if name in _bound(statement):
            yield _import_of(statement, name) if isinstance(statement, ast.Import | ast.ImportFrom) else statement


def bound_names(statements: Sequence[ast.stmt]) -> set[str]:
    """Return the names that the statements of a scope bind. For an `if`, both branches are included."""
    return {name for statement in _flat(statements) for name in _bound(statement)}


def _flat(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that may bind names in a scope, also those in an `if`, `try`, `with`, or loop."""
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
        names = (node for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
        # `f.note = …` and `f[0] = …` only use the name.
        return [node.id for node in names if isinstance(node.ctx, ast.Store)]
    return []


def _local_name(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _import_of(statement: ast.Import | ast.ImportFrom, name: str) -> ast.stmt:
    # Other names that the same line imports are not part of this definition.
    names = [alias for alias in statement.names if _local_name(alias) == name]
    if isinstance(statement, ast.Import):
        return ast.copy_location(ast.Import(names), statement)
    return ast.copy_location(ast.ImportFrom(statement.module, names, statement.level), statement)


def used_names(statements: Iterable[ast.AST]) -> frozenset[str]:
    """Return all names that appear in these statements: names, attributes, keywords, imports, and strings."""
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
        return Kind.REMOTE if any(decoration(d).startswith("@remote") for d in node.decorator_list) else Kind.CLASS
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for decorator in node.decorator_list:
            name = _short(_decorator(decorator))
            if name in _DECORATED:
                return _DECORATED[name]
        return function_kind(node)
    return Kind.IMPORTED if isinstance(node, ast.Import | ast.ImportFrom) else Kind.ASSIGNED


def _is_plain(node: ast.stmt) -> bool:
    if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    known = () if isinstance(node, ast.ClassDef) else tuple(_DESCRIPTORS)
    return all(isinstance(decorator, ast.Name) and decorator.id in known for decorator in node.decorator_list)
