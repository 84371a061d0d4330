"""A git repository's files at any commit, read from its objects: no work tree, and each file is read once."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from verl_npu.registry.source.tree import Folder, Memory, SourceTree

__all__ = ["GitError", "Objects"]

_FOLDER = b"40000"


class GitError(Exception):
    """The repository has no such commit, or git could not be run."""


class Objects:
    """The objects of a repository, from one `git cat-file --batch` that runs as long as this is open."""

    def __init__(self, repository: Path) -> None:
        command = ["git", "-C", str(repository), "cat-file", "--batch"]
        self._git = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._folders: dict[str, Mapping[str, tuple[str, bool]]] = {}
        self._files: dict[str, bytes] = {}
        self._memory = Memory(limit=400)

    def __enter__(self) -> Objects:
        return self

    def __exit__(self, *_: object) -> None:
        self._git.communicate()

    def tree(self, commit: str, packages: Sequence[str]) -> SourceTree:
        """Return the source of some top-level packages at a commit. Raises GitError if there is no such commit."""
        root = self.folder(self._read(f"{commit}^{{tree}}")[0])
        folders: dict[str, Folder | None] = dict.fromkeys(packages)
        folders |= {name: _GitFolder(self, root[name][0]) for name in packages if name in root and root[name][1]}
        return SourceTree(folders, self._memory)

    def folder(self, name: str) -> Mapping[str, tuple[str, bool]]:
        """Return what lies in a tree object: by its name, the object, and whether that is a folder."""
        if name not in self._folders:
            _, content = self._read(name)
            self._folders[name] = _entries(content, len(name) // 2)
        return self._folders[name]

    def file(self, name: str) -> bytes:
        """Return the content of a blob."""
        if name not in self._files:
            self._files[name] = self._read(name)[1]
        return self._files[name]

    def _read(self, name: str) -> tuple[str, bytes]:
        stdin, stdout = _pipes(self._git)
        stdin.write(f"{name}\n".encode())
        stdin.flush()
        head = stdout.readline().decode().split()
        if len(head) != 3:
            raise GitError(f"git has no object {name}: {' '.join(head) or 'it did not answer'}")
        content = stdout.read(int(head[2]))
        stdout.read(1)
        return head[0], content


class _GitFolder:
    """A folder of a commit."""

    def __init__(self, objects: Objects, name: str) -> None:
        self._objects = objects
        self._name = name

    def read(self, *parts: str) -> bytes | None:
        """Return the content of a file below, or None if there is none."""
        folder = self._below(parts[:-1])
        name, is_folder = (folder or {}).get(parts[-1], ("", True))
        return None if is_folder else self._objects.file(name)

    def entries(self, *parts: str) -> Sequence[str] | None:
        """Return the names of what lies in a folder below, folders with a slash; None if there is no such folder."""
        folder = self._below(parts)
        return None if folder is None else [f"{name}/" if entry[1] else name for name, entry in folder.items()]

    def _below(self, parts: Sequence[str]) -> Mapping[str, tuple[str, bool]] | None:
        folder = self._objects.folder(self._name)
        for part in parts:
            name, is_folder = folder.get(part, ("", False))
            if not is_folder:
                return None
            folder = self._objects.folder(name)
        return folder


def _entries(content: bytes, size: int) -> dict[str, tuple[str, bool]]:
    found = {}
    while content:
        head, _, rest = content.partition(b"\0")
        mode, _, name = head.partition(b" ")
        found[name.decode()] = (rest[:size].hex(), mode == _FOLDER)
        content = rest[size:]
    # A submodule is a commit of another repository: there is nothing of it here.
    return found


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    if process.stdin is None or process.stdout is None:
        raise GitError("git was started without pipes")
    return process.stdin, process.stdout
