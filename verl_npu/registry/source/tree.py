"""Upstream's source, read and never imported: targets, and the trees in which they are found."""

from __future__ import annotations

import ast
import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from ...errors import DeclarationError, SourceError
from .definition import Definition, bindings, bound_names, constants_of, define, in_words, used_names
from .folder import Folder, folders_at, installed_folder, paths_of

_SYNTAX = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<qualname>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)")


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """`module:qualname`, for example `pkg.mod:function` or `pkg.mod:Class.method`."""

    module: str
    qualname: str

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read `module:qualname`. Raises DeclarationError for anything else."""
        match = _SYNTAX.fullmatch(text)
        if match is None:
            raise DeclarationError(
                subject="the target of a patch",
                expected="module:qualname, for example package.module:Class.method",
                found=f"{text!r}",
                fix="write the module, a colon, and the name within the module",
            )
        return cls(match["module"], match["qualname"])

    @property
    def package(self) -> str:
        """The top-level package."""
        return self.module.partition(".")[0]

    @property
    def owner(self) -> str:
        """The qualified name of the class that holds the target; empty for a module's own name."""
        return self.qualname.rpartition(".")[0]

    @property
    def name(self) -> str:
        """The last part of the qualified name."""
        return self.qualname.rpartition(".")[2]

    @property
    def dotted(self) -> str:
        """Its full name, which does not tell where the module ends."""
        return f"{self.module}.{self.qualname}"

    def __str__(self) -> str:
        return f"{self.module}:{self.qualname}"


Fact = TypeVar("Fact")


def _leave_out_override(tree: ast.Module) -> None:
    """Take the decorator `typing.override` away: it is for type checkers, and leaves what it decorates."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = {
        alias.asname or alias.name
        for node in imports
        if node.module in ("typing", "typing_extensions")
        for alias in node.names
        if alias.name == "override"
    }
    for each in ast.walk(tree):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            own = each.decorator_list
            each.decorator_list = [d for d in own if not (isinstance(d, ast.Name) and d.id in names)]


class Memory:
    """Syntax trees, of which the oldest are forgotten, and what was found in them, which takes little room."""

    def __init__(self, limit: int = 1000) -> None:
        """`limit` is the number of syntax trees that are kept: each takes a hundred times the memory of its file."""
        self._limit = limit
        self._trees: OrderedDict[bytes, ast.Module] = OrderedDict()
        self._facts: dict[tuple[Hashable, ...], object] = {}

    def parse(self, data: bytes) -> ast.Module:
        """Return the syntax tree of a file's content. Raises what `ast.parse` raises."""
        tree = self._trees.pop(data, None)
        if tree is None:
            tree = ast.parse(data)
            if b"override" in data:
                _leave_out_override(tree)
        self._trees[data] = tree
        if len(self._trees) > self._limit:
            self._trees.popitem(last=False)
        return tree

    def recall(self, key: tuple[Hashable, ...], find: Callable[[], Fact]) -> Fact:
        """Return what `find` found when it was first called for `key`, which names what is sought and the content."""
        if key not in self._facts:
            self._facts[key] = find()
        return self._facts[key]  # type: ignore[return-value]  # a key is of one kind of fact


class SourceTree:
    """The source of some top-level packages, each in its own folder; a package may be absent."""

    def __init__(self, folders: Mapping[str, Folder | None], memory: Memory | None = None) -> None:
        """`memory` is for those who read many trees that have most of their files in common."""
        self._folders = dict(folders)
        self.memory = Memory() if memory is None else memory
        self._bytes: dict[str, bytes | None] = {}
        self._packages: dict[str, bool] = {}
        self._parts: dict[tuple[str, str, str], bool] = {}
        self._nodes: dict[Target, list[ast.stmt]] = {}
        self._facts: dict[tuple[Hashable, ...], object] = {}

    @classmethod
    def installed(cls, packages: Sequence[str]) -> SourceTree:
        """The packages that this interpreter would import. None of them is imported."""
        return cls({package: installed_folder(package) for package in packages})

    @classmethod
    def at(cls, path: Path, packages: Sequence[str]) -> SourceTree:
        """The packages in a checkout or a wheel at `path`. Raises SourceError if it holds none of them."""
        folders = folders_at(path, packages)
        return cls({package: folders.get(package) for package in packages})

    def with_packages(self, other: SourceTree) -> SourceTree:
        """This tree, with the packages that `other` speaks of taken from there."""
        return SourceTree({**self._folders, **other._folders}, self.memory)

    def fresh(self) -> SourceTree:
        """This tree, of which nothing has been read yet: `files` then tells what an answer depends on."""
        return SourceTree(self._folders, self.memory)

    @property
    def files(self) -> frozenset[str]:
        """All modules and files of which the source was asked for."""
        return frozenset(self._bytes)

    @property
    def packages(self) -> tuple[str, ...]:
        """The top-level packages that are here."""
        return tuple(package for package in self._folders if package in self)

    def __contains__(self, package: str) -> bool:
        return self._folders.get(package) is not None

    def place_of(self, package: str) -> str:
        """Where a package is that lies in plain folders; empty if it is elsewhere, or not here."""
        return ", ".join(map(str, paths_of(self._folders.get(package))))

    def has_part(self, subject: str, beside: str) -> bool:
        """Whether the part of an upstream is here that holds `subject`, or would hold it.

        Of two packages of one upstream, the first is `beside`. Another one may be a user's own of the same name: if it
        does not lie beside the first, only those parts of it count that are there.
        """
        package, _, rest = subject.partition(":")[0].replace("/", ".").partition(".")
        key = (package, rest.partition(".")[0], beside)
        if key not in self._parts:
            self._parts[key] = self._has_part(*key)
        return self._parts[key]

    def _has_part(self, package: str, part: str, beside: str) -> bool:
        folder = self._folders.get(package)
        paths = paths_of(folder)
        homes = {path.parent for path in paths_of(self._folders.get(beside))}
        if folder is None or package == beside or not paths or homes & {path.parent for path in paths}:
            return folder is not None
        return not part or folder.entries(part) is not None or folder.read(f"{part}.py") is not None

    def covers(self, package: str) -> bool:
        """Whether this tree speaks of `package` at all, be it present or absent."""
        return package in self._folders

    def read(self, module: str) -> bytes | None:
        """The source of `module`, or None where there is none (no such module, or compiled only).

        A file of the configuration is named by its path: `pkg/config/main.yaml`.
        """
        if module not in self._bytes:
            self._bytes[module] = self._read(module)
        return self._bytes[module]

    def _read(self, module: str) -> bytes | None:
        if "/" in module:
            package, *parts = module.split("/")
            folder = self._folders.get(package)
            return None if folder is None or ".." in parts else folder.read(*parts)
        package, *parts = module.split(".")
        folder = self._folders.get(package)
        if folder is None:
            return None
        found = folder.read(*parts, "__init__.py")
        return folder.read(*parts[:-1], f"{parts[-1]}.py") if found is None and parts else found

    def lines(self, module: str) -> list[str]:
        """The lines of a module's source; none where there is no source."""
        return (self.read(module) or b"").decode("utf-8", "replace").splitlines()

    def digest(self, module: str) -> str | None:
        """A hash of the source file as it is, byte for byte."""
        data = self.read(module)
        if data is None:
            return None
        return self.memory.recall(("digest", data), lambda: hashlib.sha256(data).hexdigest())

    def parse(self, module: str) -> ast.Module | None:
        """The syntax tree of `module`. Raises SourceError where the source does not parse."""
        data = self.read(module)
        if data is None:
            return None
        try:
            return self.memory.parse(data)
        # The parser raises the last two for code that is nested too deeply.
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise unparsable(module, error) from error

    def declared_version(self, package: str) -> str | None:
        """What the package's `__init__` sets `__version__` to, where that is a plain string."""
        nodes = self.nodes(Target(package, "__version__"))
        value = getattr(nodes[-1], "value", None) if nodes else None
        return str(value.value) if isinstance(value, ast.Constant) else None

    def nodes(self, target: Target) -> list[ast.stmt]:
        """All statements that bind the target's name in its own scope, in order; both branches of an `if` count."""
        if target not in self._nodes:
            self._nodes[target] = self._find(target)
        return self._nodes[target]

    def _find(self, target: Target) -> list[ast.stmt]:
        tree = self.parse(target.module)
        if tree is None:
            return []
        scope: list[ast.stmt] = tree.body
        if target.owner:
            for part in target.owner.split("."):
                classes = [node for node in bindings(scope, part) if isinstance(node, ast.ClassDef)]
                scope = [statement for node in classes for statement in node.body]
        return list(bindings(scope, target.name))

    def imports_from(self, module: str, name: str, source: str) -> bool:
        """Whether `module` has `name` by `from source import name`, absolute or relative."""
        return any(origin.module == source for origin in self.origins(Target(module, name)))

    def imported_module(self, module: str, node: ast.ImportFrom) -> str:
        """Return the module that a `from … import` in `module` names, whether it is absolute or relative."""
        return ".".join([*self._package_of(module, node.level), *filter(None, [node.module])])

    def origins(self, target: Target) -> list[Target]:
        """Where the target's module imports it from by `from source import name`; empty if it does not."""
        found = []
        for node in self.nodes(target) if target.package in self else ():
            if isinstance(node, ast.ImportFrom):
                source = self.imported_module(target.module, node)
                found += [Target(source, alias.name) for alias in node.names]
        return found

    def chain(self, target: Target) -> list[Target]:
        """The target; and if its module imports it, what it is there, as far as this tree has the source.

        Code that moved is still what the name stands for, as long as its old module imports it from the new one.
        """
        found: list[Target] = []
        waiting = [target]
        while waiting:
            one = waiting.pop()
            if one not in found and self.nodes(one):
                found.append(one)
                waiting += self.origins(one)
        return found

    def meaning(self, target: Target) -> list[ast.stmt]:
        """All statements that bind the target's name; if some of them import it, also those that bind it there."""
        return [node for one in self.chain(target) for node in self.nodes(one)]

    def _package_of(self, module: str, level: int) -> list[str]:
        """Return the parts of the package that `level` dots stand for in `module`."""
        if not level:
            return []
        parts = module.split(".")
        # In a package's own __init__ one dot is the package itself.
        above = level - 1 if self.read(module) is not None and self.is_package(module) else level
        return parts[: len(parts) - above]

    def is_package(self, module: str) -> bool:
        """Whether `module` is a package: a folder of modules with an `__init__`, or without one."""
        if module not in self._packages:
            package, *parts = module.split(".")
            folder = self._folders.get(package)
            self._packages[module] = folder is not None and folder.entries(*parts) is not None
        return self._packages[module]

    def is_compiled(self, module: str) -> bool:
        """Whether `module` is there as a library, of which no source tells what it has."""
        package, *parts = module.split(".")
        folder = self._folders.get(package)
        beside = (folder.entries(*parts[:-1]) or ()) if folder is not None and parts else ()
        return any(entry.startswith(f"{parts[-1]}.") and entry.endswith(".so") for entry in beside)

    def refuse_compiled(self) -> None:
        """Raise SourceError for a package that is there as bytecode alone: nothing can be said of it."""
        for package, folder in self._folders.items():
            entries = (folder.entries() or ()) if folder is not None else ()
            if "__init__.pyc" in entries and "__init__.py" not in entries:
                raise SourceError(
                    subject=package,
                    expected="its Python source, by which patches are judged",
                    found="compiled files (.pyc) alone",
                    fix="install it with its .py files",
                )

    def modules_in(self, package: str) -> Iterator[str]:
        """The names of the modules and packages that lie in `package` itself."""
        top, *parts = package.split(".")
        folder = self._folders.get(top)
        for entry in (folder.entries(*parts) or ()) if folder is not None else ():
            if entry.endswith(".py"):
                yield entry.removesuffix(".py")
            elif entry.endswith("/") and entry[:-1].isidentifier() and entry != "__pycache__/":
                yield entry[:-1]

    def modules_of(self, packages: Sequence[str]) -> Iterator[str]:
        """The full names of all modules of those packages that are in this tree."""
        here = (package for package in packages if package.partition(".")[0] in self)
        return (module for package in here for module in self.modules_below(package))

    def modules_with(self, packages: Sequence[str], words: Sequence[str]) -> Iterator[str]:
        """The modules of some packages, or of packages in them, whose text has all of some words; none counts as
        read by this."""
        for module in self.recall(("modules", *packages), lambda: tuple(self.modules_of(packages))):
            data = self.recall(("text", module), partial(self._read, module))
            if data is not None and all(word.encode() in data for word in words):
                yield module

    def modules_below(self, package: str) -> Iterator[str]:
        """The full names of all modules in `package` and in the packages below it."""
        for name in sorted(set(self.modules_in(package))):
            if name == "__init__":
                yield package
            elif self.is_package(f"{package}.{name}"):
                yield from self.modules_below(f"{package}.{name}")
            else:
                yield f"{package}.{name}"

    def recall(self, key: tuple[Hashable, ...], find: Callable[[], Fact]) -> Fact:
        """Return what `find` found when it was first called for `key`: what takes more than one file to tell."""
        if key not in self._facts:
            self._facts[key] = find()
        return self._facts[key]  # type: ignore[return-value]  # a key is of one kind of fact

    def definition(self, target: Target) -> Definition | None:
        """What the source says of `target`, or None where it does not define it."""
        data = self.read(target.module)
        if data is None:
            return None
        try:
            return self.memory.recall(
                ("definition", data, target.qualname),
                lambda: define(self.nodes(target), self._constants(target.module)),
            )
        except RecursionError as error:
            raise unparsable(target.module, error) from error

    def words(self, target: Target) -> str:
        """A fingerprint of `target` that leaves out what is only words; empty if it is not there."""
        nodes = self.nodes(target)
        return in_words(nodes) if nodes else ""

    def _constants(self, module: str) -> Mapping[str, object]:
        parsed = self.parse(module)
        return self.memory.recall(("constants", self.read(module)), lambda: constants_of(parsed) if parsed else {})

    def used_names(self, subject: str) -> frozenset[str]:
        """Return all names that are used in what a target means, or in a module."""
        module, _, qualname = subject.partition(":")
        data = self.read(module)
        if data is None:
            return frozenset()
        if not qualname:
            parsed = self.parse(module)
            return self.memory.recall(("names", data, ""), lambda: used_names([parsed] if parsed else []))
        return frozenset().union(*map(self._used_names, self.chain(Target.parse(subject))))

    def _used_names(self, target: Target) -> frozenset[str]:
        key = ("names", self.read(target.module), target.qualname)
        return self.memory.recall(key, lambda: used_names(self.nodes(target)))


def unparsable(module: str, error: Exception) -> SourceError:
    """Return the error of a module that this interpreter cannot parse, or read."""
    return SourceError(
        subject=module,
        expected="Python source that this interpreter can parse",
        found=str(error) or type(error).__name__,
        fix="use the Python version that the upstream asks for",
    )


# What is there, and what surrounds the place of what is not.


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The innermost thing that holds, or would hold, a subject: a class, a module or a package, with what it names."""

    place: str
    names: str
    """A hash of the names that are bound there."""

    def __str__(self) -> str:
        return f"{self.place} {self.names}"


def packages_above(module: str) -> list[str]:
    """Return the packages in which a module lies, the top-level one first."""
    parts = module.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


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


def _hash(names: set[str]) -> str:
    return hashlib.blake2b("\0".join(sorted(names)).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
