"""A log on disk that may still grow: a file of lines, or TensorBoard's event files."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from ..errors import TrainingLogError
from . import events
from .line import parse
from .log import Assembly, TrainingLog

__all__ = ["Follower", "follow", "read"]

_CHUNK = 1 << 20
_LONGEST_LINE = 1 << 24
"""Bytes. A step's line has a few thousand; a file without line ends must not fill the memory."""
_SAYS_SIMULATED = b"SIMULATED"
_OURS = b"verl-npu: "


class Follower(ABC):
    """Reads what is new in a log each time it is asked to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def poll(self) -> bool:
        """Read on; return whether anything was new.

        Raises:
            TrainingLogError: it is no log, or cannot be read.
        """

    @abstractmethod
    def log(self) -> TrainingLog:
        """Return what is known now."""


class _Lines(Follower):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._forget()

    def _forget(self) -> None:
        self._offset = 0
        self._rest = b""
        self._assembly = Assembly()

    def poll(self) -> bool:
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    # The job was started again with the same file.
                    self._forget()
                file.seek(self._offset)
                return self._take(iter(lambda: file.read(_CHUNK), b""))
        except OSError as error:
            raise _unreadable(self.path, error.strerror or str(error)) from error

    def _take(self, chunks: Iterator[bytes]) -> bool:
        before = self._offset
        for chunk in chunks:
            if self._offset == 0 and b"\0" in chunk[:4096]:
                raise _unreadable(self.path, "a binary file")
            self._offset += len(chunk)
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            if len(self._rest) > _LONGEST_LINE:
                self._rest = b""
            for line in lines:
                self._add(line)
        return self._offset > before

    def _add(self, raw: bytes) -> None:
        if _SAYS_SIMULATED in raw and _OURS in raw:
            self._assembly.simulated = True
        if b"step" in raw:
            line = parse(raw.decode(errors="replace"))
            if line is not None:
                self._assembly.add(line)

    def log(self) -> TrainingLog:
        return self._assembly.log(str(self.path))

    def finish(self) -> TrainingLog:
        """Return all of a log that does not grow any more, with what a cut-off last line says for sure."""
        text = self._rest.decode(errors="replace")
        self._rest = b""
        whole = parse(text)
        if text.lstrip().startswith("{"):
            self._assembly.cut = whole is None
        elif whole is not None:
            # The last value may have had more digits.
            self._assembly.cut = True
            whole = parse(text.rpartition(" - ")[0])
        if whole is not None:
            self._assembly.add(whole)
        return self.log()


class _Events(Follower):
    """All of TensorBoard's files are read anew if one has grown: they are small, and its reader does not go on."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._size = -1
        self._assembly = Assembly()

    def poll(self) -> bool:
        files = events.files(self.path)
        try:
            size = sum(file.stat().st_size for file in files)
        except OSError as error:
            raise _unreadable(self.path, error.strerror or str(error)) from error
        if size == self._size:
            return False
        self._size = size
        self._assembly = Assembly()
        for line in events.lines(files):
            self._assembly.add(line)
        return True

    def log(self) -> TrainingLog:
        return self._assembly.log(str(self.path))


def follow(path: Path) -> Follower:
    """Return a reader of a log that exists.

    Raises:
        TrainingLogError: there is none.
    """
    if not path.exists():
        raise _unreadable(path, "no such file")
    return _Events(path) if path.is_dir() or events.is_event_file(path) else _Lines(path)


def read(path: Path) -> TrainingLog:
    """Return all that a log says, of which no more is to come.

    Raises:
        TrainingLogError: it is no log, cannot be read, or has no step.
    """
    follower = follow(path)
    follower.poll()
    log = follower.finish() if isinstance(follower, _Lines) else follower.log()
    if not log.steps:
        raise _unreadable(path, "no step in it")
    return log


def _unreadable(path: Path, found: str) -> TrainingLogError:
    return TrainingLogError(
        subject=str(path),
        expected="a log of a training with verl: its console's (lines `step:1 - …`), its file logger's, or "
        "TensorBoard's",
        found=found,
        fix="give the file that the job's output went to, or the folder of its TensorBoard files",
    )
