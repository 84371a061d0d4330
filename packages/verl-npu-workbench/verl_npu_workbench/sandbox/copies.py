"""Copies files from a folder that an untrusted program can write to, into a folder that only verl-npu writes to.

A file in the first folder may be a link to anything, a pipe, or endless. Therefore, each part of a path is opened
without following links, only regular files are read, and the size is limited.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# Without O_NONBLOCK, opening a pipe waits for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_NAME = re.compile(r"[\w.+=-]{1,200}")
_MOST_FILES = 2000
_LARGEST = 256 << 20
_ALL = 1 << 30


class Copies:
    """Copies the files that match a pattern, and keeps the copies up to date while the files grow."""

    def __init__(self, folder: Path, pattern: str, target: Path) -> None:
        self._folder, self._parts, self._target = folder, tuple(pattern.split("/")), target
        self._read: dict[str, int] = {}
        self._left = _ALL

    def poll(self) -> list[Path]:
        """Copy new contents. Return all copies, sorted by name."""
        try:
            opened = os.open(self._folder, _FOLDER)
        except OSError:
            return self._made()
        for name, file in _matching(opened, self._parts):
            known = name in self._read or (_NAME.fullmatch(name) and len(self._read) < _MOST_FILES)
            if known and self._left > 0:
                self._append(name, file)
        return self._made()

    def _made(self) -> list[Path]:
        return [self._target / name for name in sorted(self._read)]

    def _append(self, name: str, file: int) -> None:
        offset = self._read.get(name, 0)
        most = min(_LARGEST - offset, self._left)
        os.lseek(file, offset, os.SEEK_SET)
        while most > 0 and (chunk := os.read(file, min(most, 1 << 20))):
            self._target.mkdir(exist_ok=True)
            with (self._target / name).open("ab") as copy:
                copy.write(chunk)
            most -= len(chunk)
            self._left -= len(chunk)
            self._read[name] = self._read.get(name, 0) + len(chunk)


def _matching(folder: int, parts: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield the name and the file descriptor of each matching regular file below a folder. The files and the folder
    are closed afterwards."""
    first, *rest = parts
    with _closing(folder):
        for name in sorted(fnmatch.filter(os.listdir(folder), first)):
            try:
                opened = os.open(name, _FOLDER if rest else _FILE, dir_fd=folder)
            except OSError:
                continue  # it is a link, or has been removed
            if rest:
                yield from _matching(opened, rest)
                continue
            with _closing(opened):
                if stat.S_ISREG(os.fstat(opened).st_mode):
                    yield name, opened


@contextmanager
def _closing(opened: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(opened)
