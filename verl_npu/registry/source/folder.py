"""The folder of a package, which may be installed, in a checkout, or in a wheel. Its files are read within limits.

The user names the source, so it may be anything: a wheel that is truncated, damaged, or encrypted, or a file that
would fill the memory. Every such fault becomes a SourceError.
"""

from __future__ import annotations

import importlib.util
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Protocol

from ...errors import SourceError

LARGEST_FILE = 1 << 20
"""The maximum size of a source file in bytes. It is four times the size of the largest file in any upstream. Parsing a
file takes a thousand times its size in memory."""

# The errors that zipfile raises.
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
    """The interface that a package's folder must implement to be part of a source tree."""

    def read(self, *parts: str) -> bytes | None:
        """Return the content of a file in the folder, or None if the file does not exist. Raises SourceError if the
        file cannot be read."""

    def entries(self, *parts: str) -> Sequence[str] | None:
        """Return the names in a subfolder, or None if the subfolder does not exist. The names of folders end with a
        slash."""


class PlainFolder(Folder):
    """A package's folder on disk."""

    __slots__ = ("path",)

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, *parts: str) -> bytes | None:
        path = self.path.joinpath(*parts)
        try:
            with open(path, "rb", opener=_open_at_once) as stream:
                return _limited(stream, str(path)) if stat.S_ISREG(os.fstat(stream.fileno()).st_mode) else None
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise _unreadable(str(path), _reason(error)) from error

    def entries(self, *parts: str) -> Sequence[str] | None:
        path = self.path.joinpath(*parts)
        try:
            with os.scandir(path) as found:
                return [f"{entry.name}/" if entry.is_dir() else entry.name for entry in found]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _unreadable(str(path), _reason(error)) from error


class PackedFolder(Folder):
    """A folder inside a wheel."""

    __slots__ = ("_name", "_wheel")

    def __init__(self, wheel: zipfile.ZipFile, name: str) -> None:
        self._wheel = wheel
        self._name = name

    def read(self, *parts: str) -> bytes | None:
        name = "/".join((self._name, *parts))
        where = f"{self._wheel.filename}: {name}"
        try:
            entry = self._wheel.getinfo(name)
            # Python bounds the memory only for these two, and wheels use no other.
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"compression method {entry.compress_type}, which is not supported in wheels")
            with self._wheel.open(entry) as stream:
                return _limited(stream, where)
        except KeyError:
            return None
        except _UNREADABLE as error:
            raise _unreadable(where, _reason(error)) from error

    def entries(self, *parts: str) -> Sequence[str] | None:
        prefix = "/".join((self._name, *parts)) + "/"
        below = [name.removeprefix(prefix) for name in self._wheel.namelist() if name.startswith(prefix)]
        # A wheel lists only files; a folder shows in the names of its files.
        names = {f"{name.partition('/')[0]}/" if "/" in name else name for name in below if name}
        return sorted(names) if below else None


def _limited(stream: IO[bytes], where: str) -> bytes:
    content = stream.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise _unreadable(where, f"more than {LARGEST_FILE >> 20} MiB")
    return content


def folders_at(path: Path, packages: Sequence[str]) -> dict[str, Folder]:
    """Return the folders of those packages that a checkout or a wheel contains. Raises SourceError if it contains
    none."""
    try:
        found = _folders(path, packages)
        there = "no such folder in it" if path.is_dir() or _is_wheel(path) else _NO_WHEEL
        there = there if path.exists() else "no such file or folder"
    except _UNREADABLE as error:
        raise _no_source(path, packages, _reason(error)) from error
    if not found:
        raise _no_source(path, packages, there)
    return found


_NO_WHEEL = "a file that is not a complete wheel"


def _is_wheel(path: Path) -> bool:
    # Do not read from a device, because it may have no end.
    return path.is_file() and zipfile.is_zipfile(path)


def _folders(path: Path, packages: Sequence[str]) -> dict[str, Folder]:
    if _is_wheel(path):
        wheel = zipfile.ZipFile(path)
        tops = {name.partition("/")[0] for name in wheel.namelist() if "/" in name}
        return {package: PackedFolder(wheel, package) for package in packages if package in tops}
    # A checkout may keep its packages under src/, as transformers does.
    base = path / "src" if any((path / "src" / package).is_dir() for package in packages) else path
    return {package: PlainFolder(base / package) for package in packages if (base / package).is_dir()}


class Portions(Folder):
    """A namespace package made of one or more folders. Modules are found in Python's search order."""

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
        """Return the folders of a subpackage. If one has an `__init__`, the first of these is the whole package."""
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
    """Return the folder of an installed package, or None if the package is not installed or has no source."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a module in sys.modules by hand, without a spec: there is no source to read
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    paths = [Path(location) for location in spec.submodule_search_locations]
    return PlainFolder(paths[0]) if spec.origin is not None else Portions(paths)


def paths_of(folder: Folder | None) -> Sequence[Path]:
    """Return the paths of a folder on disk, or an empty sequence for a folder in a wheel."""
    if isinstance(folder, Portions):
        return folder.paths
    return (folder.path,) if isinstance(folder, PlainFolder) else ()


def _no_source(path: Path, packages: Sequence[str], found: str) -> SourceError:
    return SourceError(
        subject=str(path),
        expected=f"a source tree or a wheel that holds {' or '.join(f'{p}/' for p in packages)}",
        found=found,
        fix=f"give the folder that contains {packages[0]}/, or a wheel of {packages[0]}",
    )


def _unreadable(where: str, found: str) -> SourceError:
    return SourceError(
        subject=where,
        expected="a readable source file that is not too large",
        found=found,
        fix="use an unmodified checkout or wheel, and check the permissions of this file",
    )


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error) or "a file that ends too early"


def _open_at_once(path: str, flags: int) -> int:
    # Opening a named pipe without a writer would otherwise block for ever.
    return os.open(path, flags | os.O_NONBLOCK)
