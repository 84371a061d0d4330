"""The files of a log: opened whatever they are packed with, and whether a process still writes to one."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TextIO

from verl_npu import progress
from verl_npu.language import gettext as _

_GZIP, _BZIP2, _XZ = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0"
_WIDE = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig"))
_MARKED = 6
_WRITES = os.O_WRONLY | os.O_RDWR


class NoLog(Exception):
    """It cannot be read as a log; the text says what it is."""


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """Open a log as text: plain, or packed with gzip, bzip2 or xz, by its first bytes and not by its name.

    Raises:
        NoLog: it is a device without an end.
        OSError: it cannot be read.
    """
    with path.open("rb") as raw:
        status = os.fstat(raw.fileno())
        if stat.S_ISCHR(status.st_mode) and not raw.isatty():
            raise NoLog(_("a device, which may have no end"))
        first = raw.peek(_MARKED)
        stream: IO[bytes] | gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile = raw
        # The text that is made of it closes it.
        if first.startswith(_GZIP):
            stream = gzip.GzipFile(fileobj=raw)
        elif first.startswith(_BZIP2):
            stream = bz2.BZ2File(raw)
        elif first.startswith(_XZ):
            stream = lzma.LZMAFile(raw)  # noqa: SIM115
        if stream is not raw:
            first = stream.read(_MARKED)
            stream.seek(0)
        encoding = next((name for mark, name in _WIDE if first.startswith(mark)), "utf-8")
        size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        with (
            io.TextIOWrapper(stream, encoding=encoding, errors="replace") as text,
            progress.step(
                _("reading {path}").format(path=path),
                total=size,
                measure=lambda: os.lseek(raw.fileno(), 0, os.SEEK_CUR),
            ),
        ):
            yield text


def is_being_written(path: Path) -> bool:
    """Whether a process of this host, as far as it can be seen, has the file open for writing."""
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
        # It is another user's, or has ended meanwhile.
        return False
    return False
