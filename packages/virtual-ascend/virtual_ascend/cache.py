"""Compiled libraries in the cache: whole or not there, and loaded only if nobody else can have planted them.

A library is finished when the note of its size lies beside it: loading one that is cut short would end the process
with SIGBUS. A cache that others share may be read-only, as long as what is needed is finished in it.
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
_ANOTHER = "delete it, or set VIRTUAL_ASCEND_CACHE to a folder of your own"


def is_finished(library: Path) -> bool:
    """Whether `library` is there and as long as it was when it was finished."""
    try:
        return library.stat().st_size == int(_note(library).read_text())
    except (OSError, ValueError):
        return False


def publish(built: Path, library: Path) -> None:
    """Put a library that was built into its place, so that no process ever sees half of it.

    The bytes are on the disk before the name is: after a power failure there is all of it or nothing.
    """
    with open(built, "rb") as stream:
        os.fsync(stream.fileno())
    size = built.stat().st_size
    # A umask may let the user's group write to all that is made.
    for each in (built, library.parent):
        if each.stat().st_uid == os.geteuid():
            each.chmod(stat.S_IMODE(each.stat().st_mode) & ~stat.S_IWGRP)
    os.replace(built, library)
    put(_note(library), f"{size}\n".encode())


def put(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file so that no process ever sees half of it: many start at once."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        fresh.write_bytes(content)
        fresh.chmod(mode)
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


@contextmanager
def writing(subject: str) -> Iterator[None]:
    """Raise BuildError if the file system refuses what is written to the cache meanwhile."""
    try:
        yield
    except OSError as error:
        raise BuildError(
            subject=subject,
            expected="a folder that can be written to, and room in it",
            found=str(error),
            fix="set VIRTUAL_ASCEND_CACHE to another folder, or compile into this one as a user who may",
        ) from error


def unloadable(path: Path, found: str) -> BuildError:
    """Return the error of a library in the cache that is damaged, or of another machine."""
    return BuildError(
        subject=f"the compiled library {path}",
        expected="one that this process can load",
        found=found,
        fix="delete it, and it is compiled again",
    )


def check_owner(path: Path) -> None:
    """Raise BuildError if somebody else than this user or root can have written a file or folder of code to be run."""
    for each in (path, path.parent):
        found = each.stat()
        # In a folder with the sticky bit nobody may replace what is another's.
        kept = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        if found.st_uid not in (0, os.geteuid()):
            raise _planted(each, f"that it belongs to the user with the number {found.st_uid}", _ANOTHER)
        if found.st_mode & stat.S_IWOTH and not kept:
            raise _planted(each, "that everybody may write to it", _ANOTHER)
        if found.st_mode & stat.S_IWGRP and not kept and not _is_private(found.st_gid):
            fix = f"if you trust them, chmod g-w {each}; else {_ANOTHER}"
            raise _planted(each, f"that the group with the number {found.st_gid} may write to it", fix)


def _is_private(group: int) -> bool:
    """Whether a group is that of this user alone, as many systems make one for each user."""
    user = os.geteuid()
    try:
        name, entry = pwd.getpwuid(user).pw_name, grp.getgrgid(group)
    except KeyError:
        # A container's user need not be in its tables; its group by the same number is no other's.
        return group == user
    return entry.gr_name == name and set(entry.gr_mem) <= {name}


@contextmanager
def work_folder(parent: Path) -> Iterator[Path]:
    """A new folder to build in; what killed builds have left beside it is removed.

    To be used under a lock: others that build in `parent` would lose their folders.
    """
    for left in parent.glob(f"{_BUILD}*"):
        shutil.rmtree(left, ignore_errors=True)
    # Never a name that was there before: a lock in the folder of a killed build of the same process number, as in a
    # container that starts anew, would be waited for without end.
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
        expected="that only this user or root can have written it",
        found=found,
        fix=fix,
    )
