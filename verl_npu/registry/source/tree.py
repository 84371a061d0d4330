"""Source trees and targets. The source of upstream is read and never imported."""

from __future__ import annotations

import ast
import hashlib
import re
import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from ...errors import DeclarationError, SourceError
from .definition import Definition, bindings, bound_names, constants_of, define, meaning_fingerprint, used_names
from .folder import Folder, folders_at, installed_folder, paths_of

_SYNTAX = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<qualname>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)")


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """A name in a module: `module:qualname`, for example `pkg.mod:function` or `pkg.mod:Class.method`."""

    module: str
    qualname: str

    @classmethod
    def parse(cls, text: str) -> Target:
        """Parse `module:qualname`. Raises DeclarationError for any other text."""
        match = _SYNTAX.fullmatch(text)
        if match is None:
            raise DeclarationError(
                subject="the target of a patch",
                expected="module:qualname, for example package.module:Class.method",
                found=f"{text!r}",
                fix="write the target in this format",
            )
        return cls(match["module"], match["qualname"])

    @property
    def package(self) -> str:
        """The top-level package of the target."""
        return self.module.partition(".")[0]

    @property
    def owner(self) -> str:
        """The qualified name of the class that contains the target. The value is empty if the target is directly in
        its module."""
        return self.qualname.rpartition(".")[0]

    @property
    def name(self) -> str:
        """The last part of the target's qualified name."""
        return self.qualname.rpartition(".")[2]

    @property
    def dotted(self) -> str:
        """The full name of the target, separated only by dots. Unlike `module:qualname`, this form does not show where
        the name of the module ends."""
        return f"{self.module}.{self.qualname}"

    def __str__(self) -> str:
        return f"{self.module}:{self.qualname}"


Fact = TypeVar("Fact")


def _drop_override_decorators(tree: ast.Module) -> None:
    """Remove the decorator `typing.override`, which matters only to type checkers."""
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
    """A cache of the most recently used syntax trees, and of facts found in syntax trees. Facts take little memory and
    are never evicted."""

    def __init__(self, limit: int = 1000) -> None:
        """Create an empty cache. `limit` is the number of syntax trees to keep. A syntax tree takes a hundred times
        the memory of its file."""
        self._limit = limit
        self._trees: OrderedDict[bytes, ast.Module] = OrderedDict()
        self._facts: dict[tuple[Hashable, ...], object] = {}

    def parse(self, data: bytes) -> ast.Module:
        """Return the syntax tree for the content of a file. Raises the errors of `ast.parse`."""
        tree = self._trees.pop(data, None)
        if tree is None:
            with warnings.catch_warnings():
                # An escape sequence that Python will refuse one day is upstream's matter, even with -W error.
                warnings.simplefilter("ignore")
                tree = ast.parse(data)
            if b"@override" in data or b"override as" in data:
                _drop_override_decorators(tree)
        self._trees[data] = tree
        if len(self._trees) > self._limit:
            self._trees.popitem(last=False)
        return tree

    def recall(self, key: tuple[Hashable, ...], find: Callable[[], Fact]) -> Fact:
        """Return the cached result for `key`, or call `find` to compute it. The key must contain everything that the
        result depends on: the query, and the content of the file that is searched."""
        if key not in self._facts:
            self._facts[key] = find()
        return self._facts[key]  # type: ignore[return-value]  # each key always has the same type of fact


class SourceTree:
    """The source of some top-level packages, each in its own folder. Some of the packages may not exist."""

    def __init__(self, folders: Mapping[str, Folder | None], memory: Memory | None = None) -> None:
        """Create a tree. Trees that have most of their files in common should share a `memory`."""
        self._folders = dict(folders)
        self.memory = Memory() if memory is None else memory
        self._bytes: dict[str, bytes | None] = {}
        self._packages: dict[str, bool] = {}
        self._parts: dict[tuple[str, str, str], bool] = {}
        self._nodes: dict[Target, list[ast.stmt]] = {}
        self._facts: dict[tuple[Hashable, ...], object] = {}

    @classmethod
    def installed(cls, packages: Sequence[str]) -> SourceTree:
        """Return a tree of the packages that this interpreter would import. They are not imported."""
        return cls({package: installed_folder(package) for package in packages})

    @classmethod
    def at(cls, path: Path, packages: Sequence[str]) -> SourceTree:
        """Return a tree of `packages` from a checkout or a wheel at `path`. Raises SourceError if `path` contains none
        of these packages."""
        folders = folders_at(path, packages)
        return cls({package: folders.get(package) for package in packages})

    def with_packages(self, other: SourceTree) -> SourceTree:
        """Return a tree with the packages of both trees. A package that both trees have is taken from `other`."""
        return SourceTree({**self._folders, **other._folders}, self.memory)

    def fresh(self) -> SourceTree:
        """Return a copy that has not read any files yet. After the copy has answered a question, its `files` are the
        files that the answer depends on."""
        return SourceTree(self._folders, self.memory)

    @property
    def files(self) -> frozenset[str]:
        """The names of all modules and files that were read or looked up in this tree, even if they do not exist."""
        return frozenset(self._bytes)

    @property
    def packages(self) -> tuple[str, ...]:
        """The top-level packages that exist in this tree."""
        return tuple(package for package in self._folders if package in self)

    def __contains__(self, package: str) -> bool:
        return self._folders.get(package) is not None

    def place_of(self, package: str) -> str:
        """Return the path of a package that is in a plain folder, or an empty string if the package is missing or not
        in a plain folder."""
        return ", ".join(map(str, paths_of(self._folders.get(package))))

    def has_part(self, subject: str, beside: str) -> bool:
        """Return whether this tree has the part of an upstream where `subject` belongs, even if `subject` does not
        exist. A part is a module or a folder directly inside a top-level package.

        `beside` is the first package of the upstream. A package in another folder may be unrelated, even if it has the
        name of an upstream package. Such a package must contain the part.
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
        """Return whether this tree was made for `package`. The package itself may be missing."""
        return package in self._folders

    def read(self, module: str) -> bytes | None:
        """Return the source of `module`, or None if there is no such module or if it exists only in compiled form.

        For a configuration file, `module` is its path: `pkg/config/main.yaml`.
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
        """Return the lines of a module's source, or an empty list if the module has no source."""
        return (self.read(module) or b"").decode("utf-8", "replace").splitlines()

    def digest(self, module: str) -> str | None:
        """Return a hash of all bytes of a module's source file, or None if the module has no source."""
        data = self.read(module)
        if data is None:
            return None
        return self.memory.recall(("digest", data), lambda: hashlib.sha256(data).hexdigest())

    def parse(self, module: str) -> ast.Module | None:
        """Return the syntax tree of `module`, or None if the module has no source. Raises SourceError if the source
        cannot be parsed."""
        data = self.read(module)
        if data is None:
            return None
        try:
            return self.memory.parse(data)
        # The parser raises the last two if code is nested too deeply.
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise unparsable(module, error) from error

    def declared_version(self, package: str) -> str | None:
        """Return the `__version__` that the package's `__init__` sets, if it is a plain string."""
        nodes = self.nodes(Target(package, "__version__"))
        value = getattr(nodes[-1], "value", None) if nodes else None
        return str(value.value) if isinstance(value, ast.Constant) else None

    def nodes(self, target: Target) -> list[ast.stmt]:
        """Return the statements that bind the target's name in its own scope, in order. For an `if`, both branches are
        included."""
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
        """Return whether `module` contains `from source import name`, as an absolute or a relative import."""
        return any(origin.module == source for origin in self.origins(Target(module, name)))

    def imported_module(self, module: str, node: ast.ImportFrom) -> str:
        """Return the full name of the module that `node` imports from. `node` is a `from … import` statement in
        `module`."""
        return ".".join([*self._package_of(module, node.level), *filter(None, [node.module])])

    def origins(self, target: Target) -> list[Target]:
        """Return the full names that the target's module imports the target from. For `from source import name`, this
        is `source.name`."""
        found = []
        for node in self.nodes(target) if target.package in self else ():
            if isinstance(node, ast.ImportFrom):
                source = self.imported_module(target.module, node)
                found += [Target(source, alias.name) for alias in node.names]
        return found

    def chain(self, target: Target) -> list[Target]:
        """Return the target and, if its module imports it, the locations that it is imported from. Locations that do
        not exist are omitted.

        Moved code still counts as the target if the old module imports the code from the new module.
        """
        return list(self.places(target))

    def places(self, target: Target, unread: Collection[str] = ()) -> Iterator[Target]:
        """Yield, one by one, the locations in the chain of imports that starts at a target. A module is read only when
        the caller requests the next location. The packages in `unread` are not read."""
        found: list[Target] = []
        waiting = [target]
        while waiting:
            one = waiting.pop()
            if one not in found and one.package not in unread and self.nodes(one):
                found.append(one)
                yield one
                waiting += self.origins(one)

    def meaning(self, target: Target) -> list[ast.stmt]:
        """Return all statements that bind the target's name, in the target's own module and in the modules that the
        target is imported from."""
        return [node for one in self.chain(target) for node in self.nodes(one)]

    def _package_of(self, module: str, level: int) -> list[str]:
        """Return the name, split at its dots, of the package that `level` dots refer to in `module`."""
        if not level:
            return []
        parts = module.split(".")
        # In a package's own __init__, one dot means the package itself.
        above = level - 1 if self.read(module) is not None and self.is_package(module) else level
        return parts[: len(parts) - above]

    def is_package(self, module: str) -> bool:
        """Return whether `module` is a package, that is, a folder of modules with or without an `__init__`.

        Python imports `name.py` instead of a folder `name` that has no `__init__`.
        """
        if module not in self._packages:
            package, *parts = module.split(".")
            folder = self._folders.get(package)
            inside = folder.entries(*parts) if folder is not None else None
            beside = folder.entries(*parts[:-1]) if folder is not None and inside is not None and parts else None
            hidden = f"{parts[-1]}.py" in beside if beside is not None else False
            self._packages[module] = inside is not None and ("__init__.py" in inside or not hidden)
        return self._packages[module]

    def is_compiled(self, module: str) -> bool:
        """Return whether `module` exists only as a compiled library, so that its content cannot be read from
        source."""
        package, *parts = module.split(".")
        folder = self._folders.get(package)
        beside = (folder.entries(*parts[:-1]) or ()) if folder is not None and parts else ()
        return any(entry.startswith(f"{parts[-1]}.") and entry.endswith(".so") for entry in beside)

    def refuse_compiled(self) -> None:
        """Raise SourceError if a package exists only as bytecode, because patches of the package cannot be judged."""
        for package, folder in self._folders.items():
            entries = (folder.entries() or ()) if folder is not None else ()
            if "__init__.pyc" in entries and "__init__.py" not in entries:
                raise SourceError(
                    subject=package,
                    expected="the package's Python source, which verl-npu needs to check its patches",
                    found="only compiled files (.pyc)",
                    fix="install the package with its .py files",
                )

    def modules_in(self, package: str) -> Iterator[str]:
        """Yield the names of the modules and packages that are directly in `package`."""
        top, *parts = package.split(".")
        folder = self._folders.get(top)
        for entry in (folder.entries(*parts) or ()) if folder is not None else ():
            if entry.endswith(".py"):
                yield entry.removesuffix(".py")
            elif entry.endswith("/") and entry[:-1].isidentifier() and entry != "__pycache__/":
                yield entry[:-1]

    def modules_of(self, packages: Sequence[str]) -> Iterator[str]:
        """Yield the full names of this tree's modules in `packages`."""
        here = (package for package in packages if package.partition(".")[0] in self)
        return (module for package in here for module in self.modules_below(package))

    def modules_with(self, packages: Sequence[str], words: Sequence[str]) -> Iterator[str]:
        """Yield the modules in these packages whose text contains all of `words`. The modules are not recorded in
        `files`."""
        for module in self.recall(("modules", *packages), lambda: tuple(self.modules_of(packages))):
            data = self.recall(("text", module), partial(self._read, module))
            if data is not None and all(word.encode() in data for word in words):
                yield module

    def modules_below(self, package: str) -> Iterator[str]:
        """Yield the full names of all modules in `package` and its subpackages."""
        for name in sorted(set(self.modules_in(package))):
            if name == "__init__":
                yield package
            elif self.is_package(f"{package}.{name}"):
                yield from self.modules_below(f"{package}.{name}")
            else:
                yield f"{package}.{name}"

    def recall(self, key: tuple[Hashable, ...], find: Callable[[], Fact]) -> Fact:
        """Return the cached result for `key`, or call `find` to compute it. Use this method for results that depend on
        more than one file."""
        if key not in self._facts:
            self._facts[key] = find()
        return self._facts[key]  # type: ignore[return-value]  # each key always has the same type of fact

    def definition(self, target: Target) -> Definition | None:
        """Return the definition of `target`, or None if the source does not define it."""
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
        """Return a fingerprint of `target`, or an empty string if the target does not exist. The fingerprint does not
        depend on wording, such as log messages or names of local variables."""
        nodes = self.nodes(target)
        return meaning_fingerprint(nodes) if nodes else ""

    def _constants(self, module: str) -> Mapping[str, object]:
        parsed = self.parse(module)
        return self.memory.recall(("constants", self.read(module)), lambda: constants_of(parsed) if parsed else {})

    def used_names(self, subject: str) -> frozenset[str]:
        """Return all names that appear in the definitions of a target, or in a module."""
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
    """Create the error for a module that this interpreter cannot parse or read."""
    return SourceError(
        subject=module,
        expected="Python source that this interpreter can parse",
        found=str(error) or type(error).__name__,
        fix="use a Python version that the upstream supports",
    )


# Existing subjects, and the surroundings of missing ones.


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The innermost class, module, or package that contains a subject, and the names bound in this container."""

    place: str
    names: str
    """A hash of the names that are bound in it."""

    def __str__(self) -> str:
        return f"{self.place} {self.names}"


def packages_above(module: str) -> list[str]:
    """Return the packages that contain a module, outermost first."""
    parts = module.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def package_of(subject: str) -> str:
    """Return the top-level package of a subject: a target, a module, or a configuration file."""
    return subject.partition(":")[0].partition("/")[0].partition(".")[0]


def is_there(subject: str, tree: SourceTree) -> bool:
    """Return whether the source defines a target or, for a module, whether the module exists."""
    module, _, qualname = subject.partition(":")
    data = tree.read(module)
    if data is None or not qualname:
        return data is not None
    return tree.memory.recall(("there", data, qualname), lambda: bool(tree.nodes(Target(module, qualname))))


def surroundings(subject: str, tree: SourceTree) -> Surroundings:
    """Return the innermost existing class, module, or package that contains `subject`, or that would contain `subject`
    if it existed."""
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
