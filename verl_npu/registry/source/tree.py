"""Upstream source, read and never imported: an installed package, a checkout, or a wheel."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from ...errors import SourceError
from .fingerprint import fingerprint, outline, signature
from .target import Target

__all__ = ["Definition", "Kind", "SourceTree"]


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


class _Folder(Protocol):
    """What pathlib.Path and zipfile.Path have in common, as far as a source tree needs it."""

    def joinpath(self, *other: str) -> _Folder: ...
    def is_file(self) -> bool: ...
    def is_dir(self) -> bool: ...
    def iterdir(self) -> Iterator[_Folder]: ...
    def read_bytes(self) -> bytes: ...
    @property
    def name(self) -> str: ...


class SourceTree:
    """The source of some top-level packages, each in its own folder; a package may be absent."""

    def __init__(self, folders: Mapping[str, _Folder | None]) -> None:
        self._folders = dict(folders)
        self._bytes: dict[str, bytes | None] = {}
        self._trees: dict[str, ast.Module] = {}
        self._definitions: dict[Target, Definition | None] = {}

    @classmethod
    def installed(cls, packages: Sequence[str]) -> SourceTree:
        """The packages that this interpreter would import. None of them is imported."""
        return cls({package: _installed_folder(package) for package in packages})

    @classmethod
    def at(cls, path: Path, packages: Sequence[str]) -> SourceTree:
        """The packages in a checkout or a wheel at `path`. Raises SourceError where it holds none of them."""
        if path.is_file() and zipfile.is_zipfile(path):
            archive = zipfile.ZipFile(path)
            folders: dict[str, _Folder] = {package: zipfile.Path(archive, f"{package}/") for package in packages}
            present = {package: any(n.startswith(f"{package}/") for n in archive.namelist()) for package in packages}
        else:
            # A checkout may keep its packages under src/, as transformers does.
            base = path / "src" if any((path / "src" / package).is_dir() for package in packages) else path
            folders = {package: base / package for package in packages}
            present = {package: (base / package).is_dir() for package in packages}
        if not any(present.values()):
            raise SourceError(
                subject=str(path),
                expected=f"a source tree or a wheel that holds {' or '.join(f'{p}/' for p in packages)}",
                found="none of these" if path.exists() else "no such file or folder",
                fix=f"give the folder that contains {packages[0]}/, or a wheel of it",
            )
        return cls({package: folders[package] if present[package] else None for package in packages})

    def with_packages(self, other: SourceTree) -> SourceTree:
        """This tree, with the packages that `other` speaks of taken from there."""
        return SourceTree({**self._folders, **other._folders})

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
        candidates = [folder.joinpath(*parts, "__init__.py")]
        if parts:
            candidates.append(folder.joinpath(*parts[:-1], f"{parts[-1]}.py"))
        return next((candidate.read_bytes() for candidate in candidates if candidate.is_file()), None)

    def digest(self, module: str) -> str | None:
        """A hash of the source file as it is, byte for byte."""
        data = self.read(module)
        return None if data is None else hashlib.sha256(data).hexdigest()

    def parse(self, module: str) -> ast.Module | None:
        """The syntax tree of `module`. Raises SourceError where the source does not parse."""
        data = self.read(module)
        if data is None:
            return None
        if module not in self._trees:
            try:
                self._trees[module] = ast.parse(data)
            except (SyntaxError, ValueError) as error:
                raise SourceError(
                    subject=module,
                    expected="Python source that this interpreter can parse",
                    found=str(error),
                    fix="use the Python version that the upstream asks for",
                ) from error
        return self._trees[module]

    def declared_version(self, package: str) -> str | None:
        """What the package's `__init__` sets `__version__` to, where that is a plain string."""
        nodes = self.nodes(Target(package, "__version__"))
        value = getattr(nodes[-1], "value", None) if nodes else None
        return str(value.value) if isinstance(value, ast.Constant) else None

    def nodes(self, target: Target) -> list[ast.stmt]:
        """All statements that bind the target's name in its own scope, in order; both branches of an `if` count."""
        tree = self.parse(target.module)
        if tree is None:
            return []
        scope: list[ast.stmt] = tree.body
        if target.owner:
            for part in target.owner.split("."):
                classes = [node for node in _bindings(scope, part) if isinstance(node, ast.ClassDef)]
                scope = [statement for node in classes for statement in node.body]
        return list(_bindings(scope, target.name))

    def imports_from(self, module: str, name: str, source: str) -> bool:
        """Whether `module` has `name` by `from source import name`, absolute or relative."""
        if module.partition(".")[0] not in self:
            return False
        for node in self.nodes(Target(module, name)):
            if isinstance(node, ast.ImportFrom):
                package = self._package_of(module, node.level)
                if ".".join([*package, *filter(None, [node.module])]) == source:
                    return True
        return False

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
        package, *parts = module.split(".")
        folder = self._folders.get(package)
        if folder is None:
            return False
        return folder.joinpath(*parts).is_dir() if parts else True

    def modules_in(self, package: str) -> Iterator[str]:
        """The names of the modules and packages that lie in `package` itself."""
        top, *parts = package.split(".")
        folder = self._folders.get(top)
        if folder is None:
            return
        for entry in (folder.joinpath(*parts) if parts else folder).iterdir():
            if entry.name.endswith(".py"):
                yield entry.name.removesuffix(".py")
            elif entry.is_dir() and entry.name.isidentifier() and entry.name != "__pycache__":
                yield entry.name

    def modules_below(self, package: str) -> Iterator[str]:
        """The full names of all modules in `package` and in the packages below it."""
        for name in sorted(self.modules_in(package)):
            if name == "__init__":
                yield package
            elif self.read(f"{package}.{name}") is not None and not self.is_package(f"{package}.{name}"):
                yield f"{package}.{name}"
            else:
                yield from self.modules_below(f"{package}.{name}")

    @staticmethod
    def bound_names(statement: ast.stmt) -> Iterator[str]:
        """The names that a statement binds in its own scope; both branches of an `if` count."""
        return _bound(statement)

    def definition(self, target: Target) -> Definition | None:
        """What the source says of `target`, or None where it does not define it."""
        if target not in self._definitions:
            self._definitions[target] = self._define(target)
        return self._definitions[target]

    def _define(self, target: Target) -> Definition | None:
        nodes = self.nodes(target)
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


def _installed_folder(package: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a module put into sys.modules by hand, with no spec: there is no source to read
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _bindings(statements: Sequence[ast.stmt], name: str) -> Iterator[ast.stmt]:
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if statement.name == name:
                yield statement
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            named = [a for a in statement.names if (a.asname or a.name.partition(".")[0]) == name]
            if named:
                yield _import_of(statement, named)
        elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = (n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))
            if name in names:
                yield statement
        else:
            # if, try, with, for, while: their bodies share the scope.
            for part in ("body", "orelse", "finalbody"):
                yield from _bindings(getattr(statement, part, []), name)
            for handler in getattr(statement, "handlers", []):
                yield from _bindings(handler.body, name)


def _bound(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
    elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))
    else:
        for part in ("body", "orelse", "finalbody"):
            yield from (name for inner in getattr(statement, part, []) for name in _bound(inner))
        for handler in getattr(statement, "handlers", []):
            yield from (name for inner in handler.body for name in _bound(inner))


def _import_of(statement: ast.Import | ast.ImportFrom, names: list[ast.alias]) -> ast.stmt:
    # What else the same line imports is no part of this name's definition.
    if isinstance(statement, ast.Import):
        return ast.copy_location(ast.Import(names), statement)
    return ast.copy_location(ast.ImportFrom(statement.module, names, statement.level), statement)


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
