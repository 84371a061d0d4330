"""The cache of compiled libraries. An incomplete library in the cache is never loaded.

A file beside each finished library holds its size, because loading a truncated library ends the process with SIGBUS. A
library that another user could have planted is not loaded either. A shared cache may be read-only if it contains every
library that is needed.
"""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import BuildError

_BUILD = "build-"
_REPLACE_HINT = "delete it, or set VIRTUAL_ASCEND_CACHE to a folder of your own"


def is_finished(library: Path) -> bool:
    """Return whether `library` exists and has the size that was recorded when its build finished."""
    try:
        return library.stat().st_size == int(_note(library).read_text())
    except (OSError, ValueError):
        return False


def publish(built: Path, library: Path) -> None:
    """Move a built library to its final path, so that no process ever sees an incomplete file.

    The content is flushed to disk before the file gets its final name. After a power failure, the library is therefore
    either complete or missing.
    """
    with open(built, "rb") as stream:
        os.fsync(stream.fileno())
    size = built.stat().st_size
    # With some umasks the user's group may write to every new file.
    for each in (built, library.parent):
        if each.stat().st_uid == os.geteuid():
            each.chmod(stat.S_IMODE(each.stat().st_mode) & ~stat.S_IWGRP)
    os.replace(built, library)
    put(_note(library), f"{size}\n".encode())


def put(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file so that no process ever sees an incomplete file, even if many processes write the file at the same
    time."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        fresh.write_bytes(content)
        fresh.chmod(mode)
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


@contextmanager
def writing(subject: str) -> Iterator[None]:
    """Convert an OSError in the `with` block, which writes to the cache, into a BuildError."""
    try:
        yield
    except OSError as error:
        raise BuildError(
            subject=subject,
            expected="a writable folder with free space",
            found=str(error),
            fix="set VIRTUAL_ASCEND_CACHE to another folder, or compile once as a user who can write to this folder",
        ) from error


def unloadable(path: Path, found: str) -> BuildError:
    """Return the error for a cached library that is damaged, or was compiled on another kind of machine."""
    return BuildError(
        subject=f"the compiled library {path}",
        expected="a library that this process can load",
        found=found,
        fix="delete the file; the library is compiled again when a program next starts",
    )


def check_owner(path: Path) -> None:
    """Raise BuildError if anyone other than this user or root could have written this file or its folder."""
    for each in (path, path.parent):
        found = each.stat()
        # In a folder with the sticky bit, nobody can replace another user's file.
        kept = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        if found.st_uid not in (0, os.geteuid()):
            raise _planted(each, f"a file or folder of user {found.st_uid}", _REPLACE_HINT)
        if found.st_mode & stat.S_IWOTH and not kept:
            raise _planted(each, "a file or folder that everybody can write to", _REPLACE_HINT)
        if found.st_mode & stat.S_IWGRP and not kept and not _is_private(found.st_gid):
            fix = f"run chmod g-w {each} if you trust the group's members; otherwise {_REPLACE_HINT}"
            raise _planted(each, f"a file or folder that the group {found.st_gid} can write to", fix)


def _is_private(group: int) -> bool:
    """Return whether this user is the only member of a group. Many systems create such a group for each user."""
    user = os.geteuid()
    try:
        name, entry = pwd.getpwuid(user).pw_name, grp.getgrgid(group)
    except KeyError:
        # A container's user may be missing from its tables. Nobody else is in the group with the same number.
        return group == user
    return entry.gr_name == name and set(entry.gr_mem) <= {name}


@contextmanager
def work_folder(parent: Path) -> Iterator[Path]:
    """Context manager that creates a new folder for a build, and removes the folder at the end. Folders in `parent`
    that remain from killed builds are removed first.

    The caller must hold a lock. Otherwise, another process that builds in `parent` could lose its folder.
    """
    for left in parent.glob(f"{_BUILD}*"):
        shutil.rmtree(left, ignore_errors=True)
    # The name is always new. In a restarted container the process number repeats, and a lock left in the folder of a
    # killed build would block forever.
    folder = Path(tempfile.mkdtemp(prefix=_BUILD, dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _note(library: Path) -> Path:
    return library.with_name(f"{library.name}.size")


def _planted(path: Path, found: str, fix: str) -> BuildError:
    return BuildError(
        subject=f"the compiled library {path}",
        expected="a file that only this user or root can write to",
        found=found,
        fix=fix,
    )
