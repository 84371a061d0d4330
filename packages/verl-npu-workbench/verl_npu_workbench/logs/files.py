"""Opens a log's files, compressed or not, and tells whether a process is still writing to one."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from verl_npu import progress
from verl_npu.language import gettext as _

STDIN = Path("-")
"""The path that stands for standard input."""
UNREADABLE = (OSError, EOFError, lzma.LZMAError, zlib.error)
"""The errors that reading an unreadable or damaged file can raise."""
_GZIP, _BZIP2, _XZ = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0"
_ARCHIVES = (
    (0, b"PK\x03\x04", "zip"),
    (0, b"7z\xbc\xaf", "7z"),
    (0, b"\x28\xb5\x2f\xfd", "zstd"),
    (257, b"ustar", "tar"),
)
_WIDE = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig"))
_MARKED, _CHUNK = 512, 1 << 16
_WRITES = os.O_WRONLY | os.O_RDWR


class NoLog(Exception):
    """The file is not a log. The message says what it is."""


def is_stream(path: Path) -> bool:
    """Return whether a path can be read only once, because it is standard input or a named pipe."""
    try:
        return path == STDIN or stat.S_ISFIFO(path.stat().st_mode)
    except OSError:
        return False


@contextmanager
def reading(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file. Progress is shown while it is read.

    Raises:
        NoLog: the file is a device, which may be endless.
        OSError: the file cannot be read.
    """
    with progress.step(_("reading {path}").format(path=path)) as step, _file(path) as raw:
        status = os.fstat(raw.fileno())
        if stat.S_ISBLK(status.st_mode) or (stat.S_ISCHR(status.st_mode) and not raw.isatty()):
            raise NoLog(_("a device, which may be endless"))
        if stat.S_ISREG(status.st_mode):
            step.total, step.measure = status.st_size, lambda: os.lseek(raw.fileno(), 0, os.SEEK_CUR)
        yield raw


def _file(path: Path) -> io.BufferedReader:
    if path == STDIN:
        return open(0, "rb", closefd=False)
    if is_stream(path):
        # Opening a named pipe waits for a writer.
        with progress.step(_("waiting for somebody to write to {path}").format(path=path)):
            return path.open("rb")
    return path.open("rb")


def unpacked(raw: io.BufferedReader) -> io.BufferedReader:
    """Return a file's decompressed content. gzip, bzip2, and xz are recognized by the first bytes of the file, not by
    its name.

    Raises:
        NoLog: the file is an archive of files.
    """
    first = raw.peek(_MARKED)
    stream: gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile | None = None
    if first.startswith(_GZIP):
        stream = gzip.GzipFile(fileobj=raw)
    elif first.startswith(_BZIP2):
        stream = bz2.BZ2File(raw)
    elif first.startswith(_XZ):
        stream = lzma.LZMAFile(raw)  # noqa: SIM115 - the caller's file is closed with it
    found = raw if stream is None else io.BufferedReader(stream, _CHUNK)
    first = first if stream is None else found.peek(_MARKED)
    for place, mark, name in _ARCHIVES:
        if first.startswith(mark, place):
            raise NoLog(_("an archive ({name}): unpack it first").format(name=name))
    return found


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """Open a log as text, compressed or not.

    Raises:
        NoLog: the file is a device, which may be endless, or an archive.
        OSError: the file cannot be read.
    """
    with reading(path) as raw:
        stream = unpacked(raw)
        first = stream.peek(_MARKED)
        encoding = next((name for mark, name in _WIDE if first.startswith(mark)), "utf-8")
        with io.TextIOWrapper(stream, encoding=encoding, errors="replace") as text:
            yield text


def is_being_written(path: Path) -> bool:
    """Return whether a process that is visible on this host has the file open for writing."""
    try:
        sought = path.stat()
    except OSError:
        return False
    return any(_writes(folder, sought) for folder in Path("/proc").glob("[0-9]*/fd"))


def _writes(folder: Path, sought: os.stat_result) -> bool:
    try:
        for each in folder.iterdir():
            found = each.stat()
            if (found.st_ino, found.st_dev) == (sought.st_ino, sought.st_dev):
                flags = (folder.parent / "fdinfo" / each.name).read_text().partition("flags:")[2].split()[0]
                if int(flags, 8) & _WRITES:
                    return True
    except OSError:
        # The process belongs to another user, or has ended meanwhile.
        return False
    return False
