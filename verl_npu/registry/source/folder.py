"""Where the files of a package are: a folder, or a folder within a wheel. They are read within limits.

The user names the source, so it may be anything: a file that only claims to be a wheel, or one that would fill the
memory. Whatever is wrong with it, the error is a SourceError.
"""

from __future__ import annotations

import io
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Protocol

from ...errors import SourceError

__all__ = ["Folder", "PackedFolder", "PlainFolder", "open_wheel"]

LARGEST_FILE = 1 << 20
"""Bytes of one source file: four times the largest one of any upstream. Parsing takes a thousand times its memory."""
LARGEST_LISTING = 4 << 20
"""Bytes of a wheel's list of files, and of each single read: the largest wheel of an upstream lists 0.6 MiB."""

# A wheel that is cut short, damaged or encrypted makes zipfile raise any of these.
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


class Folder(Protocol):
    """What a source tree needs of the place where a package is."""

    def read(self, *parts: str) -> bytes | None:
        """Return the content of a file below, or None if there is none. Raises SourceError for one it cannot read."""

    def entries(self, *parts: str) -> Sequence[str] | None:
        """Return the names of what lies in a folder below, folders with a slash; None if there is no such folder."""


class PlainFolder:
    """A folder on disk."""

    __slots__ = ("path",)

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, *parts: str) -> bytes | None:
        """Return the content of a file below, or None if there is none. Raises SourceError for one it cannot read."""
        path = self.path.joinpath(*parts)
        try:
            with open(path, "rb", opener=_open_at_once) as stream:
                if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                    return None
                content = stream.read(LARGEST_FILE + 1)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise _unreadable(str(path), _reason(error)) from error
        return _limited(content, str(path))

    def entries(self, *parts: str) -> Sequence[str] | None:
        """Return the names of what lies in a folder below, folders with a slash; None if there is no such folder."""
        path = self.path.joinpath(*parts)
        try:
            with os.scandir(path) as found:
                return [f"{entry.name}/" if entry.is_dir() else entry.name for entry in found]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _unreadable(str(path), _reason(error)) from error


class PackedFolder:
    """A folder within a wheel."""

    __slots__ = ("_name", "_wheel")

    def __init__(self, wheel: zipfile.ZipFile, name: str) -> None:
        self._wheel = wheel
        self._name = name

    def read(self, *parts: str) -> bytes | None:
        """Return the content of a file below, or None if there is none. Raises SourceError for one it cannot read."""
        name = "/".join((self._name, *parts))
        where = f"{self._wheel.filename}: {name}"
        try:
            entry = self._wheel.getinfo(name)
        except KeyError:
            return None
        if entry.flag_bits & 1:
            raise _unreadable(where, "an encrypted file")
        # Python bounds the memory of these two alone; a wheel is made with no other.
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _unreadable(where, f"compression method {entry.compress_type}, which wheels do not use")
        try:
            with self._wheel.open(entry) as stream:
                content = _read_in_pieces(stream)
        except _UNREADABLE as error:
            raise _unreadable(where, _reason(error)) from error
        return _limited(content, where)

    def entries(self, *parts: str) -> Sequence[str] | None:
        """Return the names of what lies in a folder below, folders with a slash; None if there is no such folder."""
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
        raise _unreadable(str(path), _reason(error)) from error
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


def _limited(content: bytes, where: str) -> bytes:
    if len(content) > LARGEST_FILE:
        raise _unreadable(where, f"more than {LARGEST_FILE >> 20} MiB")
    return content


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error) or "a file that ends too early"


def _unreadable(where: str, found: str) -> SourceError:
    return SourceError(
        subject=where,
        expected="source that can be read, of an ordinary size",
        found=found,
        fix="give a checkout or a wheel as it was published, and check its permissions",
    )


def _open_at_once(path: str, flags: int) -> int:
    # A named pipe that nobody writes to would otherwise make us wait for ever.
    return os.open(path, flags | os.O_NONBLOCK)
