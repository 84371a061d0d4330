"""Upstream source, read and never imported: an installed package, a checkout, or a wheel."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ...errors import SourceError
from .definition import Definition, bindings, define, used_names
from .folder import Folder, PackedFolder, PlainFolder, open_wheel
from .memory import Memory
from .target import Target

__all__ = ["SourceTree"]


class SourceTree:
    """The source of some top-level packages, each in its own folder; a package may be absent."""

    def __init__(self, folders: Mapping[str, Folder | None], memory: Memory | None = None) -> None:
        """`memory` is for those who read many trees that have most of their files in common."""
        self._folders = dict(folders)
        self.memory = Memory() if memory is None else memory
        self._bytes: dict[str, bytes | None] = {}
        self._packages: dict[str, bool] = {}
        self._nodes: dict[Target, list[ast.stmt]] = {}

    @classmethod
    def installed(cls, packages: Sequence[str]) -> SourceTree:
        """The packages that this interpreter would import. None of them is imported."""
        return cls({package: _installed_folder(package) for package in packages})

    @classmethod
    def at(cls, path: Path, packages: Sequence[str]) -> SourceTree:
        """The packages in a checkout or a wheel at `path`. Raises SourceError if it holds none of them."""
        try:
            folders = _packages_at(path, packages)
        except OSError as error:
            raise _no_source(path, packages, error.strerror or str(error)) from error
        if not folders:
            raise _no_source(path, packages, _what_is_at(path))
        return cls({package: folders.get(package) for package in packages})

    def with_packages(self, other: SourceTree) -> SourceTree:
        """This tree, with the packages that `other` speaks of taken from there."""
        return SourceTree({**self._folders, **other._folders}, self.memory)

    def __contains__(self, package: str) -> bool:
        return self._folders.get(package) is not None

    def covers(self, package: str) -> bool:
        """Whether this tree speaks of `package` at all, be it present or absent."""
        return package in self._folders

    def read(self, module: str) -> bytes | None:
        """The source of `module`, or None where there is none (no such module, or compiled only)."""
        if module not in self._bytes:
            self._bytes[module] = self._read(module)
        return self._bytes[module]

    def _read(self, module: str) -> bytes | None:
        package, *parts = module.split(".")
        folder = self._folders.get(package)
        if folder is None:
            return None
        found = folder.read(*parts, "__init__.py")
        return folder.read(*parts[:-1], f"{parts[-1]}.py") if found is None and parts else found

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
            raise _unparsable(module, error) from error

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

    def modules_in(self, package: str) -> Iterator[str]:
        """The names of the modules and packages that lie in `package` itself."""
        top, *parts = package.split(".")
        folder = self._folders.get(top)
        for entry in (folder.entries(*parts) or ()) if folder is not None else ():
            if entry.endswith(".py"):
                yield entry.removesuffix(".py")
            elif entry.endswith("/") and entry[:-1].isidentifier() and entry != "__pycache__/":
                yield entry[:-1]

    def modules_below(self, package: str) -> Iterator[str]:
        """The full names of all modules in `package` and in the packages below it."""
        for name in sorted(set(self.modules_in(package))):
            if name == "__init__":
                yield package
            elif self.is_package(f"{package}.{name}"):
                yield from self.modules_below(f"{package}.{name}")
            else:
                yield f"{package}.{name}"

    def definition(self, target: Target) -> Definition | None:
        """What the source says of `target`, or None where it does not define it."""
        data = self.read(target.module)
        if data is None:
            return None
        try:
            return self.memory.recall(("definition", data, target.qualname), lambda: define(self.nodes(target)))
        except RecursionError as error:
            raise _unparsable(target.module, error) from error

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


def _packages_at(path: Path, packages: Sequence[str]) -> dict[str, Folder]:
    wheel = open_wheel(path) if path.is_file() else None
    if wheel is not None:
        names = wheel.namelist()
        return {p: PackedFolder(wheel, p) for p in packages if any(name.startswith(f"{p}/") for name in names)}
    # A checkout may keep its packages under src/, as transformers does.
    base = path / "src" if any((path / "src" / package).is_dir() for package in packages) else path
    return {package: PlainFolder(base / package) for package in packages if (base / package).is_dir()}


def _what_is_at(path: Path) -> str:
    if not path.exists():
        return "no such file or folder"
    if path.is_file() and open_wheel(path) is None:
        return "a file that is no wheel, or not all of one"
    return "none of these"


def _no_source(path: Path, packages: Sequence[str], found: str) -> SourceError:
    return SourceError(
        subject=str(path),
        expected=f"a source tree or a wheel that holds {' or '.join(f'{p}/' for p in packages)}",
        found=found,
        fix=f"give the folder that contains {packages[0]}/, or a wheel of it",
    )


def _unparsable(module: str, error: Exception) -> SourceError:
    return SourceError(
        subject=module,
        expected="Python source that this interpreter can parse",
        found=str(error) or type(error).__name__,
        fix="use the Python version that the upstream asks for",
    )


def _installed_folder(package: str) -> Folder | None:
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a module put into sys.modules by hand, with no spec: there is no source to read
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return PlainFolder(Path(next(iter(spec.submodule_search_locations))))
