"""Where a package lies: plain folders, of which files are read within limits.

The user names the source, so it may be anything: an installed package, a checkout, one that would fill the memory.
Whatever is wrong with a file, the error is a SourceError.
"""

from __future__ import annotations

import importlib.util
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ...errors import SourceError

LARGEST_FILE = 1 << 20
"""Bytes of one source file: four times the largest one of any upstream. Parsing takes a thousand times its memory."""


class Folder(Protocol):
    """What a source tree needs of the place where a package is."""

    def read(self, *parts: str) -> bytes | None:
        """Return the content of a file below, or None if there is none. Raises SourceError for one it cannot read."""

    def entries(self, *parts: str) -> Sequence[str] | None:
        """Return the names of what lies in a folder below, folders with a slash; None if there is no such folder."""


class PlainFolder(Folder):
    """A folder on disk."""

    __slots__ = ("path",)

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, *parts: str) -> bytes | None:
        path = self.path.joinpath(*parts)
        try:
            with open(path, "rb", opener=_open_at_once) as stream:
                if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                    return None
                content = stream.read(LARGEST_FILE + 1)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise unreadable(str(path), reason(error)) from error
        return limited(content, str(path))

    def entries(self, *parts: str) -> Sequence[str] | None:
        path = self.path.joinpath(*parts)
        try:
            with os.scandir(path) as found:
                return [f"{entry.name}/" if entry.is_dir() else entry.name for entry in found]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise unreadable(str(path), reason(error)) from error


class Portions(Folder):
    """A package without an `__init__`, of one folder or several, in which things are found as Python finds them."""

    __slots__ = ("paths",)

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)

    def read(self, *parts: str) -> bytes | None:
        found = (PlainFolder(path).read(parts[-1]) for path in self._at(parts[:-1]))
        return next((content for content in found if content is not None), None)

    def entries(self, *parts: str) -> Sequence[str] | None:
        found = [PlainFolder(path).entries() for path in self._at(parts)]
        present = [names for names in found if names is not None]
        return sorted({name for names in present for name in names}) if present else None

    def _at(self, parts: Sequence[str]) -> Sequence[Path]:
        """Return the folders that a package in this one is made of: the first with an `__init__` is all of it."""
        paths: Sequence[Path] = self.paths
        for part in parts:
            spaces = []
            for path in paths:
                if (path / part / "__init__.py").is_file():
                    spaces = [path / part]
                    break
                if (path / f"{part}.py").is_file():
                    return ()
                if (path / part).is_dir():
                    spaces.append(path / part)
            paths = spaces
        return paths


def installed_folder(package: str) -> Folder | None:
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a module put into sys.modules by hand, with no spec: there is no source to read
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    paths = [Path(location) for location in spec.submodule_search_locations]
    return PlainFolder(paths[0]) if spec.origin is not None else Portions(paths)


def paths_of(folder: Folder | None) -> Sequence[Path]:
    if isinstance(folder, Portions):
        return folder.paths
    return (folder.path,) if isinstance(folder, PlainFolder) else ()


def limited(content: bytes, where: str) -> bytes:
    if len(content) > LARGEST_FILE:
        raise unreadable(where, f"more than {LARGEST_FILE >> 20} MiB")
    return content


def reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error) or "a file that ends too early"


def unreadable(where: str, found: str) -> SourceError:
    return SourceError(
        subject=where,
        expected="source that can be read, of an ordinary size",
        found=found,
        fix="give a checkout or a wheel as it was published, and check its permissions",
    )


def _open_at_once(path: str, flags: int) -> int:
    # A named pipe that nobody writes to would otherwise make us wait for ever.
    return os.open(path, flags | os.O_NONBLOCK)
