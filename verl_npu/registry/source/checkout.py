"""Sources that are not installed: a checkout, or a wheel, which may only claim to be one.

A wheel that is cut short, damaged or encrypted, or that would fill the memory, is a SourceError.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from ...errors import SourceError
from .folder import LARGEST_FILE, Folder, PlainFolder, limited, reason, unreadable

LARGEST_LISTING = 4 << 20
"""Bytes of a wheel's list of files, and of each single read: the largest wheel of an upstream lists 0.6 MiB."""

# zipfile raises any of these.
_UNREADABLE = (
    OSError,
    RuntimeError,
    ValueError,
    OverflowError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
)


class PackedFolder(Folder):
    """A folder within a wheel."""

    __slots__ = ("_name", "_wheel")

    def __init__(self, wheel: zipfile.ZipFile, name: str) -> None:
        self._wheel = wheel
        self._name = name

    def read(self, *parts: str) -> bytes | None:
        name = "/".join((self._name, *parts))
        where = f"{self._wheel.filename}: {name}"
        try:
            entry = self._wheel.getinfo(name)
        except KeyError:
            return None
        if entry.flag_bits & 1:
            raise unreadable(where, "an encrypted file")
        # Python bounds the memory of these two alone; a wheel is made with no other.
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise unreadable(where, f"compression method {entry.compress_type}, which wheels do not use")
        try:
            with self._wheel.open(entry) as stream:
                content = _read_in_pieces(stream)
        except _UNREADABLE as error:
            raise unreadable(where, reason(error)) from error
        return limited(content, where)

    def entries(self, *parts: str) -> Sequence[str] | None:
        prefix = "/".join((self._name, *parts)) + "/"
        below = [name.removeprefix(prefix) for name in self._wheel.namelist() if name.startswith(prefix)]
        # A wheel lists files only: a folder shows in the names of what is below it.
        names = {f"{name.partition('/')[0]}/" if "/" in name else name for name in below if name}
        return sorted(names) if below else None


def open_wheel(path: Path) -> zipfile.ZipFile | None:
    """Open the wheel at `path`; None if that is no zip archive. Raises SourceError for one that cannot be read."""
    try:
        file = _Bounded(path)
        if not zipfile.is_zipfile(file):
            file.close()
            return None
        file.seek(0)
        wheel = zipfile.ZipFile(file)
    except _UNREADABLE as error:
        raise unreadable(str(path), reason(error)) from error
    wheel.filename = str(path)
    return wheel


class _Bounded(io.FileIO):
    """A file that gives no more than a limit at once: an archive may claim that its list of files is of any size."""

    def read(self, size: int | None = -1) -> bytes:
        everything = size is None or size < 0
        content = super().read(LARGEST_LISTING + 1 if everything else min(size or 0, LARGEST_LISTING + 1)) or b""
        if len(content) > LARGEST_LISTING:
            raise ValueError(f"a list of files of more than {LARGEST_LISTING >> 20} MiB")
        return content

    def __del__(self) -> None:
        # It lives as long as the source tree, which nobody closes; zipfile closes only files that it opened itself.
        self.close()


def _read_in_pieces(stream: IO[bytes]) -> bytes:
    content = bytearray()
    while len(content) <= LARGEST_FILE:
        piece = stream.read(1 << 16)
        if not piece:
            break
        content += piece
    return bytes(content)


def folders_at(path: Path, packages: Sequence[str]) -> dict[str, Folder]:
    """Return the folders of those packages that a checkout or a wheel holds. Raises SourceError if it holds none."""
    try:
        found = _folders(path, packages)
    except OSError as error:
        raise _no_source(path, packages, error.strerror or str(error)) from error
    if not found:
        raise _no_source(path, packages, _what_is_at(path))
    return found


def _folders(path: Path, packages: Sequence[str]) -> dict[str, Folder]:
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
        return "a file that is not a complete wheel"
    return "none of these folders in it"


def _no_source(path: Path, packages: Sequence[str], found: str) -> SourceError:
    return SourceError(
        subject=str(path),
        expected=f"a source tree or a wheel that holds {' or '.join(f'{p}/' for p in packages)}",
        found=found,
        fix=f"give the folder that contains {packages[0]}/, or a wheel of it",
    )
