"""What a shared library asks of others: read from the ELF file itself, because loading it is what may fail."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NotElf", "SharedLibrary", "read"]

_MAGIC = b"\x7fELF"
_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRTAB, _RPATH, _RUNPATH = 1, 5, 15, 29
_VERDEF, _VERDEFNUM, _VERNEED, _VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF


class NotElf(ValueError):
    """The file is no shared library of a 64-bit little-endian machine, or is cut off."""


@dataclass(frozen=True, slots=True)
class SharedLibrary:
    """One file."""

    path: Path
    needed: tuple[str, ...]
    """The libraries without which it cannot be loaded."""
    search: tuple[str, ...]
    """Where it asks the loader to look for them, `$ORIGIN` resolved."""
    versions: Mapping[str, tuple[str, ...]]
    """By library, the versions of symbols that it needs there."""
    provides: tuple[str, ...]
    """The versions of symbols that it has itself."""


def read(path: Path) -> SharedLibrary:
    """Read one file. Raises NotElf, OSError."""
    with path.open("rb") as file:
        if path.stat().st_size < 64:
            raise NotElf(path)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                return _Reader(content).library(path)
            except (struct.error, IndexError, StopIteration) as error:
                raise NotElf(path) from error


class _Reader:
    def __init__(self, content: mmap.mmap) -> None:
        # A 64-bit file of little-endian byte order, as on x86_64 and aarch64.
        if content[:6] != _MAGIC + b"\x02\x01":
            raise NotElf("not a 64-bit little-endian ELF file")
        self._content = content
        offset, size, count = self._unpack("<Q", 32)[0], *self._unpack("<HH", 54)
        headers = [self._unpack("<IIQQQQQQ", offset + size * index) for index in range(count)]
        self._loads = [(header[3], header[2], header[5]) for header in headers if header[0] == _LOAD]
        self._dynamic: list[tuple[int, int]] = [
            (self._unpack("<q", header[2] + step)[0], self._unpack("<Q", header[2] + step + 8)[0])
            for header in headers
            if header[0] == _DYNAMIC
            for step in range(0, header[5] - 15, 16)
        ]
        tags = dict(self._dynamic)
        self._strings = self._file_offset(tags[_STRTAB]) if _STRTAB in tags else 0
        self._tags = tags

    def library(self, path: Path) -> SharedLibrary:
        needed = tuple(self._string(value) for tag, value in self._dynamic if tag == _NEEDED)
        search = [self._string(value) for tag, value in self._dynamic if tag in (_RPATH, _RUNPATH)]
        folders = [folder for each in search for folder in each.split(":") if folder]
        origin = str(path.resolve().parent)
        resolved = tuple(f.replace("$ORIGIN", origin).replace("${ORIGIN}", origin) for f in folders)
        return SharedLibrary(path, needed, resolved, dict(self._needs()), tuple(self._defines()))

    def _needs(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The layout is that of the section .gnu.version_r, in the Linux Standard Base."""
        if _VERNEED not in self._tags:
            return
        place = self._file_offset(self._tags[_VERNEED])
        for _ in range(self._tags.get(_VERNEEDNUM, 0)):
            _, count, file, auxiliary, following = self._unpack("<HHIII", place)
            names, at = [], place + auxiliary
            for _ in range(count):
                _, _, _, name, onward = self._unpack("<IHHII", at)
                names.append(self._string(name))
                at += onward
            yield self._string(file), tuple(names)
            place += following

    def _defines(self) -> Iterator[str]:
        """That of .gnu.version_d; the first name of each entry is the version."""
        if _VERDEF not in self._tags:
            return
        place = self._file_offset(self._tags[_VERDEF])
        for _ in range(self._tags.get(_VERDEFNUM, 0)):
            _, _, _, _, _, auxiliary, following = self._unpack("<HHHHIII", place)
            yield self._string(self._unpack("<II", place + auxiliary)[0])
            place += following

    def _file_offset(self, address: int) -> int:
        return next(offset + address - start for start, offset, size in self._loads if start <= address < start + size)

    def _string(self, offset: int) -> str:
        start = self._strings + offset
        end = self._content.find(b"\0", start)
        return self._content[start:end].decode("utf-8", "replace")

    def _unpack(self, layout: str, offset: int) -> tuple[int, ...]:
        return struct.unpack_from(layout, self._content, offset)
