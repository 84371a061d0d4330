"""Mutants of an upstream at a pin, made by rule from its own source and kept in memory.

Most remove something from the place where a patch looks for it: it is renamed, moved, or deleted. Others change no
code at all.
"""

from __future__ import annotations

import ast
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path

from verl_npu.registry.source.tree import Memory, SourceTree, Target

PACKAGES = ("verl", "recipe")
_SUFFIX = "_renamed"
_READ = (".py", ".yaml")


class Kind(str, Enum):
    """The change made to the source."""

    TARGET_RENAMED = "target renamed"
    CLASS_RENAMED = "class renamed"
    MODULE_GONE = "module gone"
    MODULE_MOVED = "module moved"
    OTHER_MODULE = "moved to another module"
    OTHER_MODULE_IMPORTED = "moved, and imported back"
    OTHER_CLASS = "moved to another class"

    BY_HAND = "edited by hand"
    DECORATED = "decorator added"
    REDEFINED = "redefined under an if"

    EDITED = "edited"
    """A target, in one of the ways of `edits.py`."""

    COMMENTS = "comments"
    BLANK_LINES = "blank lines"
    DOCSTRINGS = "docstrings"
    MOVED_LINES = "moved lines"


@dataclass(frozen=True)
class Mutant:
    """One changed tree: the files that differ, with None for those that are gone."""

    kind: Kind
    subject: str
    files: Mapping[str, bytes | None] = field(repr=False)

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject}"


class Listed:
    """A folder of a source tree that is a table of files in memory."""

    def __init__(self, files: Mapping[str, bytes], name: str) -> None:
        self._files = {
            path.removeprefix(f"{name}/"): data for path, data in files.items() if path.startswith(f"{name}/")
        }

    def read(self, *parts: str) -> bytes | None:
        return self._files.get("/".join(parts))

    @cached_property
    def _folders(self) -> dict[str, set[str]]:
        folders: dict[str, set[str]] = {}
        for path in self._files:
            parts = path.split("/")
            for depth, part in enumerate(parts):
                entry = part if depth == len(parts) - 1 else f"{part}/"
                folders.setdefault("/".join(parts[:depth]), set()).add(entry)
        return folders

    def entries(self, *parts: str) -> Sequence[str] | None:
        found = self._folders.get("/".join(parts))
        return None if found is None else sorted(found)


class Upstream:
    """The source of verl at a pin, as a table of files, and the trees that differ from it in a few of them."""

    def __init__(self, source: Path) -> None:
        self.files = dict(sorted(_files(source)))
        self._memory = Memory(limit=200)

    @cached_property
    def pristine(self) -> SourceTree:
        return self.tree()

    def tree(self, mutant: Mutant | None = None) -> SourceTree:
        changed = {**self.files, **(mutant.files if mutant else {})}
        files = {path: data for path, data in changed.items() if data is not None}
        present = [name for name in PACKAGES if any(path.startswith(f"{name}/") for path in files)]
        folders = {name: Listed(files, name) if name in present else None for name in PACKAGES}
        return SourceTree(folders, self._memory)

    def path(self, module: str) -> str | None:
        stem = module.replace(".", "/")
        return next((path for path in (f"{stem}/__init__.py", f"{stem}.py") if path in self.files), None)

    def text(self, path: str) -> str:
        return self.files[path].decode()

    def parse(self, path: str) -> ast.Module:
        return self._memory.parse(self.files[path])

    @cached_property
    def _defined(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for data in self.files.values():
            for name in re.findall(rb"^\s*(?:async def|def|class) (\w+)", data, re.MULTILINE):
                counts[name.decode()] = counts.get(name.decode(), 0) + 1
        return counts

    def renamed(self, name: str, path: str) -> dict[str, bytes | None]:
        """Rename in one file, and in all others if nothing else in the upstream has that name."""
        unique = self._defined.get(name, 0) == 1
        word = re.compile(rf"\b{name}\b".encode())
        paths = [p for p, data in self.files.items() if name.encode() in data] if unique else [path]
        return {p: word.sub(f"{name}{_SUFFIX}".encode(), self.files[p]) for p in paths}


def losses(upstream: Upstream, subjects: Sequence[str]) -> Iterator[Mutant]:
    """Yield every way in which each of the subjects, which all exist, can get lost."""
    modules = dict.fromkeys(subject.partition(":")[0] for subject in subjects)
    for module in modules:
        if "." not in module:
            continue  # An upstream without its package is one that is not installed.
        path = upstream.path(module)
        assert path is not None, module
        gone = {p: None for p in upstream.files if p == path or _below(path, p)}
        yield Mutant(Kind.MODULE_GONE, module, gone)
        yield Mutant(Kind.MODULE_MOVED, module, gone | {_moved_path(path, p): upstream.files[p] for p in gone})
    classes: dict[tuple[str, str], None] = {}
    for target in (Target.parse(subject) for subject in subjects if ":" in subject):
        path = upstream.path(target.module)
        assert path is not None, target
        yield Mutant(Kind.TARGET_RENAMED, str(target), _renamed(upstream, target, path))
        if target.owner:
            classes[target.module, target.owner] = None
        yield from _moves(upstream, target, path)
    for module, owner in classes:
        path = upstream.path(module)
        assert path is not None, module
        yield Mutant(Kind.CLASS_RENAMED, f"{module}:{owner}", upstream.renamed(owner, path))


def _renamed(upstream: Upstream, target: Target, path: str) -> dict[str, bytes | None]:
    files = upstream.renamed(target.name, path)
    new, old = (files[path] or b"").splitlines(), upstream.files[path].splitlines()
    for node in upstream.pristine.nodes(target):
        if isinstance(node, ast.ImportFrom):
            # The name in the module that it is imported from is not ours to rename.
            for line in range(node.lineno - 1, node.end_lineno or node.lineno):
                new[line] = _imported_as(old[line], target.name)
    return files | {path: b"\n".join([*new, b""])}


def _imported_as(line: bytes, name: str) -> bytes:
    word, alias = re.escape(name.encode()), f"{name}{_SUFFIX}".encode()
    renamed, count = re.subn(rb"\bas " + word + rb"\b", b"as " + alias, line)
    # The last one of a line: the module that it is imported from may have the same name.
    return renamed if count else re.sub(rb"(.*)\b" + word + rb"\b", rb"\g<0> as " + alias, line, count=1)


def _moves(upstream: Upstream, target: Target, path: str) -> Iterator[Mutant]:
    nodes = upstream.pristine.nodes(target)
    if not all(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for node in nodes):
        return  # An assignment or an import has no body that could stand elsewhere.
    lines = upstream.text(path).splitlines(keepends=True)
    taken, rest = [], list(lines)
    for node in reversed(nodes):
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
        taken[:0] = lines[first : node.end_lineno]
        indent = " " * node.col_offset
        rest[first : node.end_lineno] = [f"{indent}pass\n"]
    folder, _, name = path.rpartition("/")
    stem = f"moved_{name.removesuffix('.py').strip('_')}"
    without, column = "".join(rest), nodes[0].col_offset
    held = f"\n\nclass Holder{_SUFFIX}:\n" + _indented("".join(taken), column, 4)
    moved = held if target.owner else "\n\n" + _indented("".join(taken), column, 0)
    imports = (node for node in upstream.parse(path).body if isinstance(node, ast.Import | ast.ImportFrom))
    header = "".join(f"{ast.unparse(node)}\n" for node in imports)
    elsewhere = {f"{folder}/{stem}.py": (header + moved).encode()}
    yield Mutant(Kind.OTHER_MODULE, str(target), {path: without.encode(), **elsewhere})
    yield Mutant(Kind.OTHER_CLASS, str(target), {path: (without + held).encode()})
    if not target.owner:
        # Where it was defined, because later code may call it.
        rest[first] = f"from .{stem} import {target.name}\n"
        yield Mutant(Kind.OTHER_MODULE_IMPORTED, str(target), {path: "".join(rest).encode(), **elsewhere})


def changes(upstream: Upstream, targets: Sequence[Target]) -> Iterator[Mutant]:
    """Yield changes that make a target another object while its own lines stay as they are."""
    for target in targets:
        nodes, path = upstream.pristine.nodes(target), upstream.path(target.module)
        if path is None or not all(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes):
            continue
        lines = upstream.text(path).splitlines(keepends=True)
        node = nodes[-1]
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
        indent = " " * node.col_offset
        decorated = [*lines[:first], f"{indent}@decorator{_SUFFIX}\n", *lines[first:]]
        yield Mutant(Kind.DECORATED, str(target), {path: "".join(decorated).encode()})
        again = f"{indent}if True:\n{indent}    def {target.name}(*arguments):\n{indent}        pass\n"
        redefined = [*lines[: node.end_lineno], again, *lines[node.end_lineno or 0 :]]
        yield Mutant(Kind.REDEFINED, str(target), {path: "".join(redefined).encode()})


def harmless(upstream: Upstream, modules: Sequence[str]) -> Iterator[Mutant]:
    """Yield changes that touch no code, in all of some modules at once."""
    paths = [path for path in map(upstream.path, modules) if path is not None]
    for kind, change in _HARMLESS.items():
        changed = {path: change(upstream.text(path), upstream.parse(path)).encode() for path in paths}
        yield Mutant(kind, "all modules", changed)


def _commented(text: str, tree: ast.Module) -> str:
    free = _free_lines(text, tree)
    lines = enumerate(text.splitlines(), 1)
    return "".join(f"{line}  # a comment\n" if number in free else f"{line}\n" for number, line in lines)


def _spread(text: str, tree: ast.Module) -> str:
    free = _free_lines(text, tree)
    lines = enumerate(text.splitlines(), 1)
    return "".join(f"\n\n{line}\n" if number in free else f"{line}\n" for number, line in lines)


def _lowered(text: str, tree: ast.Module) -> str:
    return "# a line more\n" * 40 + text


def _free_lines(text: str, tree: ast.Module) -> set[int]:
    """Return the lines around which something may be inserted: no string spans them, and none is continued."""
    inside = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant | ast.JoinedStr) and (node.end_lineno or 0) > node.lineno
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    lines = text.splitlines()
    continued = {
        n for n, line in enumerate(lines, 1) if line.endswith("\\") or (n > 1 and lines[n - 2].endswith("\\"))
    }
    return {n for n, line in enumerate(lines, 1) if line.strip()} - inside - continued


def _documented(text: str, tree: ast.Module) -> str:
    """Give functions and classes another docstring, or a first one."""
    lines = text.splitlines(keepends=True)
    changed = list(lines)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in sorted((n for n in ast.walk(tree) if isinstance(n, kinds)), key=lambda n: -n.body[0].lineno):
        first = node.body[0]
        at = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))])
        expression = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        if expression and isinstance(first.value.value, str):
            if len(node.body) > 1:
                changed[first.lineno - 1 : first.end_lineno] = [f'{" " * first.col_offset}"""Another."""\n']
        elif lines[at - 2].rstrip().endswith(":") and at > node.lineno:
            changed.insert(at - 1, f'{" " * first.col_offset}"""A first."""\n')
    return "".join(changed)


_HARMLESS = {
    Kind.COMMENTS: _commented,
    Kind.BLANK_LINES: _spread,
    Kind.DOCSTRINGS: _documented,
    Kind.MOVED_LINES: _lowered,
}


def _indented(block: str, old: int, new: int) -> str:
    lines = block.splitlines(keepends=True)
    return "".join(" " * new + line[old:] if line.strip() and not line[:old].strip() else line for line in lines)


def _below(path: str, other: str) -> bool:
    return path.endswith("/__init__.py") and other.startswith(path.removesuffix("__init__.py"))


def _moved_path(path: str, file: str) -> str:
    """Return the new path of a file that moves with its module: to the folder above, or below a new one."""
    if path.endswith("/__init__.py"):
        folder = path.removesuffix("/__init__.py")
        return f"{folder}{_SUFFIX}{file.removeprefix(folder)}"
    folder, _, name = path.rpartition("/")
    return f"{folder}/moved/{name}"


def _files(source: Path) -> Iterator[tuple[str, bytes]]:
    if source.is_dir():
        for package in PACKAGES:
            for path in (source / package).rglob("*"):
                if path.suffix in _READ and path.is_file():
                    yield str(path.relative_to(source)), path.read_bytes()
        return
    with zipfile.ZipFile(source) as wheel:
        for name in wheel.namelist():
            if name.endswith(_READ) and name.partition("/")[0] in PACKAGES:
                yield name, wheel.read(name)
