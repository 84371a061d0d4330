"""Mutants of an upstream at a pin, made by rule from its own source and kept in memory.

Most take one thing away from the place where a patch looks for it: it is renamed, moved, or deleted. Others change no
code at all.
"""

from __future__ import annotations

import ast
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path

from verl_npu.registry.source.memory import Memory
from verl_npu.registry.source.target import Target
from verl_npu.registry.source.tree import SourceTree

__all__ = ["Kind", "Mutant", "Upstream", "harmless", "losses"]

PACKAGES = ("verl", "recipe")
_SUFFIX = "_renamed"


class Kind(str, Enum):
    """What was done to the source."""

    TARGET_RENAMED = "target renamed"
    CLASS_RENAMED = "class renamed"
    MODULE_GONE = "module gone"
    MODULE_MOVED = "module moved"
    OTHER_MODULE = "moved to another module"
    OTHER_MODULE_IMPORTED = "moved, and imported back"
    OTHER_CLASS = "moved to another class"

    COMMENTS = "comments"
    BLANK_LINES = "blank lines"
    DOCSTRINGS = "docstrings"
    MOVED_LINES = "moved lines"


@dataclass(frozen=True)
class Mutant:
    """One changed tree: the files that are not as they were, None for those that are gone."""

    kind: Kind
    subject: str
    files: Mapping[str, bytes | None]

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
        self._memory = Memory()

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
        """Rename in one file; and in all others, if nothing else in the upstream has that name."""
        unique = self._defined.get(name, 0) == 1
        word = re.compile(rf"\b{name}\b".encode())
        paths = [p for p, data in self.files.items() if name.encode() in data] if unique else [path]
        return {p: word.sub(f"{name}{_SUFFIX}".encode(), self.files[p]) for p in paths}


def losses(upstream: Upstream, subjects: Sequence[str]) -> Iterator[Mutant]:
    """Every way in which each of the subjects, which are all there, can get lost."""
    modules = dict.fromkeys(subject.partition(":")[0] for subject in subjects)
    for module in modules:
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
            # What it is called where it comes from is not ours to rename.
            new[node.lineno - 1] = old[node.lineno - 1] + f" as {target.name}{_SUFFIX}".encode()
    return files | {path: b"\n".join([*new, b""])}


def _moves(upstream: Upstream, target: Target, path: str) -> Iterator[Mutant]:
    nodes = upstream.pristine.nodes(target)
    if not all(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for node in nodes):
        return  # An assignment or an import: there is no body that could stand elsewhere.
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
    elsewhere = {f"{folder}/{stem}.py": f"import torch\n{moved}".encode()}
    yield Mutant(Kind.OTHER_MODULE, str(target), {path: without.encode(), **elsewhere})
    yield Mutant(Kind.OTHER_CLASS, str(target), {path: (without + held).encode()})
    if not target.owner:
        back = f"\n\nfrom .{stem} import {target.name}\n"
        yield Mutant(Kind.OTHER_MODULE_IMPORTED, str(target), {path: (without + back).encode(), **elsewhere})


def harmless(upstream: Upstream, modules: Sequence[str]) -> Iterator[Mutant]:
    """What changes no code, in each of some modules."""
    for module in modules:
        path = upstream.path(module)
        assert path is not None, module
        text = upstream.text(path)
        lines = text.splitlines(keepends=True)
        inside = _inside_strings(upstream.parse(path))
        commented = [
            line.rstrip("\n") + "  # a comment\n" if _takes_comment(line, n, inside) else line
            for n, line in enumerate(lines, 1)
        ]
        yield Mutant(Kind.COMMENTS, module, {path: "".join(commented).encode()})
        spread = [f"\n{line}" if _takes_comment(line, n, inside) else line for n, line in enumerate(lines, 1)]
        yield Mutant(Kind.BLANK_LINES, module, {path: "".join(spread).encode()})
        yield Mutant(Kind.DOCSTRINGS, module, {path: _documented(upstream.parse(path), lines).encode()})
        yield Mutant(Kind.MOVED_LINES, module, {path: ("# a line more\n" * 40 + text).encode()})


def _inside_strings(tree: ast.Module) -> set[int]:
    """The lines that a string ends on or goes through: what is put at their end would be part of it."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant | ast.JoinedStr) and (node.end_lineno or 0) > node.lineno
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }


def _takes_comment(line: str, number: int, inside: set[int]) -> bool:
    return bool(line.strip()) and not line.rstrip().endswith("\\") and number not in inside


def _documented(tree: ast.Module, lines: list[str]) -> str:
    """Give every function and class on lines of its own another docstring, or a first one."""
    changed = list(lines)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    nodes = sorted((n for n in ast.walk(tree) if isinstance(n, kinds)), key=lambda n: -n.body[0].lineno)
    for node in nodes:
        first = node.body[0]
        at = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))])
        head = lines[at - 2].rstrip()
        documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        if documented and isinstance(first.value.value, str) and len(node.body) > 1:
            changed[first.lineno - 1 : first.end_lineno] = [f'{" " * first.col_offset}"""Another."""\n']
        elif not documented and head.endswith(":") and at > node.lineno:
            changed.insert(at - 1, f'{" " * first.col_offset}"""A first."""\n')
    return "".join(changed)


def _indented(block: str, old: int, new: int) -> str:
    lines = block.splitlines(keepends=True)
    return "".join(" " * new + line[old:] if line.strip() and not line[:old].strip() else line for line in lines)


def _below(path: str, other: str) -> bool:
    return path.endswith("/__init__.py") and other.startswith(path.removesuffix("__init__.py"))


def _moved_path(path: str, file: str) -> str:
    """Where a file goes with a module: to the folder above, or below a new one."""
    if path.endswith("/__init__.py"):
        folder = path.removesuffix("/__init__.py")
        return f"{folder}{_SUFFIX}{file.removeprefix(folder)}"
    folder, _, name = path.rpartition("/")
    return f"{folder}/moved/{name}"


def _files(source: Path) -> Iterator[tuple[str, bytes]]:
    if source.is_dir():
        for package in PACKAGES:
            for path in (source / package).rglob("*.py"):
                yield str(path.relative_to(source)), path.read_bytes()
        return
    with zipfile.ZipFile(source) as wheel:
        for name in wheel.namelist():
            if name.endswith(".py") and name.partition("/")[0] in PACKAGES:
                yield name, wheel.read(name)
