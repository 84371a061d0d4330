"""Looking things up in a source tree: a dotted name, a target that is gone, moved code, unmet imports."""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from .definition import bound_names, outline
from .tree import SourceTree, Target

# Dotted names.

# An import of an import of an import: no package goes through more modules than this.
_DEPTH = 12
_MAKES_NAMES = (b"import *", b"__getattr__", b"sys.modules[", b"globals()")


def _glance(data: bytes, names: Sequence[str]) -> bool | None:
    """Say whether a module binds `names[0]`, a class in it `names[1]`, and so on; None if parsing has to tell.

    It says yes only of a `def` or `class` at the beginning of a line, and no only of a name that its text nowhere has.
    """
    if names[0].encode() not in data:
        return None if any(mark in data for mark in _MAKES_NAMES) else False
    scope = data
    for depth, name in enumerate(names):
        found = re.search(rb"^%s(?:def|class|async def) %s\b[^\n]*\n" % (b"    " * depth, name.encode()), scope, re.M)
        if found is None:
            return None
        if depth < len(names) - 1 and not found[0].lstrip().startswith(b"class"):
            return None
        # The body ends at the next line that is not further inside.
        end = re.compile(rb"^(?! {%d}|[ \t]*(?:#|\n|\)))" % (4 * depth + 4), re.M).search(scope, found.end())
        scope = scope[found.end() : end.start() if end is not None else len(scope)]
    return True


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a source tree says of a full dotted name."""

    name: str
    """As `module:qualname` if the tree has the module; where it is defined, if it is imported from elsewhere."""
    missing: str = ""
    """The first part of it that is not there; empty if all of it is there, or if the source alone cannot tell."""
    certain: bool = True
    """Whether the source tells that it is there: some modules make their names when they are executed."""


def missing_module(name: str, tree: SourceTree) -> str:
    """Return the first part of a module's name that is no module in `tree`; empty if there is none."""
    parts = name.split(".")
    if not tree.covers(parts[0]):
        return ""
    prefixes = [".".join(parts[: length + 1]) for length in range(len(parts))]
    return next((prefix for prefix in prefixes if not _is_module(prefix, tree)), "")


def resolve(name: str, tree: SourceTree, depth: int = _DEPTH) -> Resolved:
    """Look for a dotted name in `tree`, through so many imports. Raises SourceError if a module does not parse."""
    parts = name.split(".")
    if not tree.covers(parts[0]) or not depth:
        return Resolved(name, certain=False)
    if parts[0] not in tree:
        return Resolved(name, missing=parts[0])
    module, names = parts[0], parts[1:]
    while names and tree.is_package(module) and _is_module(f"{module}.{names[0]}", tree):
        module, names = f"{module}.{names[0]}", names[1:]
    return _in_module(module, names, tree, depth) if names else Resolved(module)


def _is_module(name: str, tree: SourceTree) -> bool:
    return tree.read(name) is not None or tree.is_package(name)


def _in_module(module: str, names: list[str], tree: SourceTree, depth: int) -> Resolved:
    place = f"{module}:{'.'.join(names)}"
    data = tree.read(module)
    seen = None if data is None or tree.is_package(module) else _glance(data, names)
    if seen is not None:
        return Resolved(place, missing="" if seen else f"{module}:{names[0]}")
    nodes = tree.nodes(Target(module, names[0]))
    if not nodes:
        if tree.is_package(module):
            # It may have been meant as a module of the package.
            place = f"{module}.{'.'.join(names)}"
        lacking = _lacks(module, names[0], tree)
        stale = place.removesuffix("." + ".".join(names[1:])) if names[1:] else place
        return Resolved(place, missing=stale if lacking else "", certain=False)
    for node in reversed(nodes):
        if isinstance(node, ast.ImportFrom):
            original = next(alias.name for alias in node.names if (alias.asname or alias.name) == names[0])
            return resolve(".".join([tree.imported_module(module, node), original, *names[1:]]), tree, depth - 1)
        if isinstance(node, ast.ClassDef) and names[1:]:
            return _in_class(Target(module, names[0]), names[1:], tree, depth)
    # What an assigned name or a function has as attributes is not written there.
    return Resolved(place, certain=not names[1:])


def _lacks(module: str, name: str, tree: SourceTree) -> bool:
    """Whether a module certainly has no name that its source does not bind."""
    parsed = tree.parse(module)
    if parsed is None or tree.nodes(Target(module, "__getattr__")):
        return False
    stars = False
    for node in ast.walk(parsed):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            stars = True
            if not _star_lacks(tree.imported_module(module, node), name, tree):
                return False
    # A lazy package imports for type checkers all that it has.
    return stars or not any(map(_makes_names, parsed.body))


def _makes_names(statement: ast.stmt) -> bool:
    """Whether a statement, or one in it, is `sys.modules[__name__] = LazyModule(…)` or `globals()[…] = …`."""
    assigned = [node.targets[0] for node in ast.walk(statement) if isinstance(node, ast.Assign)]
    return any(
        isinstance(target, ast.Subscript) and ast.unparse(target.value) in ("sys.modules", "globals()")
        for target in assigned
    )


def _star_lacks(module: str, name: str, tree: SourceTree) -> bool:
    if not tree.covers(module.partition(".")[0]) or tree.is_package(module):
        return False
    parsed = tree.parse(module)
    if parsed is None:
        return True
    stars = any(isinstance(n, ast.ImportFrom) and any(alias.name == "*" for alias in n.names) for n in parsed.body)
    return not stars and not tree.nodes(Target(module, name))


def _in_class(owner: Target, names: list[str], tree: SourceTree, depth: int) -> Resolved:
    target = Target(owner.module, f"{owner.qualname}.{names[0]}")
    nodes = tree.nodes(target)
    place = f"{owner}.{'.'.join(names)}"
    if nodes:
        if names[1:] and isinstance(nodes[-1], ast.ClassDef):
            return _in_class(target, names[1:], tree, depth)
        return Resolved(place, certain=not names[1:])
    bases = [base for node in tree.nodes(owner) if isinstance(node, ast.ClassDef) for base in node.bases]
    for base in bases:
        inherited = _in_base(owner.module, base, names, tree, depth)
        if inherited is None or not inherited.missing:
            # To assign it to the class changes what the class has, wherever it was inherited from.
            return Resolved(place, certain=inherited is not None and inherited.certain)
    return Resolved(place, missing=f"{owner}.{names[0]}")


def _in_base(module: str, base: ast.expr, names: list[str], tree: SourceTree, depth: int) -> Resolved | None:
    """Look for names in a base class; None if it cannot be told which class that is."""
    if isinstance(base, ast.Subscript):
        base = base.value
    parts = ast.unparse(base).split(".") if isinstance(base, ast.Name | ast.Attribute) else []
    if not parts or not depth:
        return None
    if parts == ["object"]:
        return Resolved("object", missing=f"object.{names[0]}")
    nodes = tree.nodes(Target(module, parts[0]))
    if not nodes or isinstance(nodes[-1], ast.Import):
        return None
    found = _in_module(module, [*parts, *names], tree, depth - 1)
    owner = _in_module(module, parts, tree, depth - 1)
    return None if owner.missing or not owner.certain else found


# What is there, and what surrounds the place of what is not.


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The innermost thing that holds, or would hold, a subject: a class, a module or a package, with what it names."""

    place: str
    names: str
    """A hash of the names that are bound there."""

    def __str__(self) -> str:
        return f"{self.place} {self.names}"


def package_of(subject: str) -> str:
    """Return the top-level package of a subject: a target, a module, or a file of the configuration."""
    return subject.partition(":")[0].partition("/")[0].partition(".")[0]


def is_there(subject: str, tree: SourceTree) -> bool:
    """Whether the source defines a target, or has a module."""
    module, _, qualname = subject.partition(":")
    data = tree.read(module)
    if data is None or not qualname:
        return data is not None
    return tree.memory.recall(("there", data, qualname), lambda: bool(tree.nodes(Target(module, qualname))))


def surroundings(subject: str, tree: SourceTree) -> Surroundings:
    """Return the innermost class, module or package that is there and holds, or would hold, `subject`."""
    module, _, qualname = subject.partition(":")
    owners = qualname.split(".")[:-1]
    while owners:
        found = tree.nodes(Target(module, ".".join(owners)))
        classes = [node for node in found if isinstance(node, ast.ClassDef)]
        if classes:
            names = bound_names([statement for node in classes for statement in node.body])
            return Surroundings(f"{module}:{'.'.join(owners)}", _hash(names))
        owners.pop()
    parsed = tree.parse(module) if qualname else None
    if parsed is not None:
        return Surroundings(module, _hash(bound_names(parsed.body)))
    package = module.rpartition(".")[0]
    while package and not tree.is_package(package):
        package = package.rpartition(".")[0]
    return Surroundings(package, _hash(set(tree.modules_in(package))) if package else "")


def namesake(subject: str, packages: Sequence[str], tree: SourceTree) -> str | None:
    """Return what has the name of a subject in a module whose last two names are the same; None if nothing has.

    `recipe.gkd.trainer:Trainer.fit` has one in `verl.experimental.gkd.trainer:Trainer.fit`.
    """
    module, _, qualname = subject.partition(":")
    ending = "." + ".".join(module.split(".")[-2:])
    for other in tree.modules_of(packages):
        found = f"{other}:{qualname}" if qualname else other
        if other != module and other.endswith(ending) and is_there(found, tree):
            return found
    return None


def _hash(names: set[str]) -> str:
    return hashlib.blake2b("\0".join(sorted(names)).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


# Where code stands now that is not where it was: the same body, or the one that is most like it.

Body = tuple[str, ...]

# A body of one or two statements (`pass`, `return x`) is found in many places, and says nothing of where it went.
_TELLING = 3


def elsewhere(target: Target, bodies: Collection[Body], packages: Sequence[str], tree: SourceTree) -> Target | None:
    """Return where one of the bodies that a target had at the pins stands now, or None if it is found nowhere.

    It is looked for under any name in the target's own module, and under its own name in the rest of some packages.
    """
    telling = {body for body in bodies if len(body) >= _TELLING}
    for module in _candidates(target, packages, tree) if telling else ():
        for qualname, body in _bodies(module, tree):
            if body in telling and (module == target.module or qualname.rpartition(".")[2] == target.name):
                return Target(module, qualname)
    return None


def similarity(one: Body, other: Body) -> float:
    """Return which share of the statements two bodies have in common, wherever these stand: from 0 to 1."""
    kept = sum((Counter(one) & Counter(other)).values())
    return kept / max(len(one), len(other), 1)


def _bodies(module: str, tree: SourceTree) -> Sequence[tuple[str, Body]]:
    """Return all functions and classes of a module, and those inside its classes, each with what is inside it."""
    return tree.memory.recall(("bodies", tree.read(module)), lambda: tuple(_read_bodies(tree.parse(module))))


def _read_bodies(tree: ast.Module | None) -> Iterator[tuple[str, Body]]:
    waiting: list[tuple[str, ast.stmt]] = [("", node) for node in (tree.body if tree is not None else ())]
    while waiting:
        prefix, node = waiting.pop(0)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            qualname = prefix + node.name
            yield qualname, tuple(line.mark for line in outline([node])[1:])
            if isinstance(node, ast.ClassDef):
                waiting += [(f"{qualname}.", inner) for inner in node.body]


def _candidates(target: Target, packages: Sequence[str], tree: SourceTree) -> Iterator[str]:
    yield target.module
    # Every other class has an __init__: one that moved is looked for with its class.
    name = target.owner.rpartition(".")[2] if target.name.startswith("__") else target.name
    needles = (f"def {name}(".encode(), f"class {name}".encode())
    for module in tree.modules_of(packages):
        data = tree.read(module) or b""
        # Parsing all of a large package would take seconds.
        if module != target.module and any(needle in data for needle in needles):
            yield module


# Imports that cannot succeed: an ImportError, seen before a process has it.

Decide = Callable[[ast.expr], bool | None]
"""Whether a condition holds; None if the source alone cannot tell."""


@dataclass(frozen=True, slots=True)
class UnmetImport:
    """An import that cannot succeed."""

    module: str
    """The module that imports."""
    line: int
    name: str
    """What it imports, by its full name."""
    missing: str
    """The first part of that name that is not there."""


def unmet_imports(
    starts: Iterable[str], importer: str, imported: str, tree: SourceTree, decide: Decide = lambda test: None
) -> Iterator[UnmetImport]:
    """Yield what the package `imported` lacks of all that is imported with the modules `starts` of `importer`.

    An import counts if it is certain: at the top of a module, under no `try`, and under no condition that `decide`
    leaves open. Raises SourceError if a module on the way does not parse.
    """
    waiting, seen = list(starts), set[str]()
    while waiting:
        module = waiting.pop(0)
        parsed = tree.parse(module) if module not in seen else None
        seen.add(module)
        for statement in _certain(parsed.body, decide) if parsed is not None else ():
            names, modules = _imported(module, statement, tree)
            if modules[0].partition(".")[0] == importer:
                waiting += [part for name in modules for part in _with_parents(name)]
            elif modules[0].partition(".")[0] == imported:
                lacking = ((name, _missing(base, name, tree)) for base, name in names)
                yield from (
                    UnmetImport(module, statement.lineno, name, missing) for name, missing in lacking if missing
                )


def _missing(module: str, name: str, tree: SourceTree) -> str:
    """Return the first part of an import that is certainly not there; a package's `__getattr__` makes no modules."""
    missing = missing_module(module, tree) or (resolve(name, tree).missing if name != module else "")
    return "" if tree.is_compiled(missing.partition(":")[0]) else missing


def _certain(body: Iterable[ast.stmt], decide: Decide) -> Iterator[ast.Import | ast.ImportFrom]:
    for statement in body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield statement
        elif isinstance(statement, ast.If):
            holds = False if ast.unparse(statement.test).endswith("TYPE_CHECKING") else decide(statement.test)
            if holds is not None:
                yield from _certain(statement.body if holds else statement.orelse, decide)


def _imported(
    module: str, statement: ast.Import | ast.ImportFrom, tree: SourceTree
) -> tuple[list[tuple[str, str]], list[str]]:
    """Return what a statement imports, each with the module that has it, and the modules that are executed for it."""
    if isinstance(statement, ast.Import):
        modules = [alias.name for alias in statement.names]
        return [(name, name) for name in modules], modules
    base = tree.imported_module(module, statement)
    names = [f"{base}.{alias.name}" for alias in statement.names if alias.name != "*"] or [base]
    return [(base, name) for name in names], [base, *(name for name in names if tree.read(name) is not None)]


def _with_parents(module: str) -> Iterator[str]:
    parts = module.split(".")
    yield from (".".join(parts[:length]) for length in range(1, len(parts) + 1))
