"""The processes that a launch starts, with all that descends from them, and their end.

Ray's workers, and what they start, lose their parents when Ray ends. The kernel gives orphans to the nearest ancestor
that asks for them (PR_SET_CHILD_SUBREAPER, prctl(2)), so all of them stay descendants of the launch, and are found by
their ids: nobody else's process ever is.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

__all__ = ["Family", "Member", "descendants"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)
_KILLED = 10.0
"""Seconds for the kernel to end what was killed; a process that waits for a device may take longer."""


@dataclass(frozen=True, slots=True)
class Member:
    """One process that was started here, and what it printed."""

    process: subprocess.Popen[bytes]
    output: IO[bytes] | None

    def last_lines(self, count: int) -> tuple[str, ...]:
        """Return the last lines that it printed, without empty ones."""
        if self.output is None:
            return ()
        self.output.seek(0)
        lines = self.output.read().decode(errors="replace").splitlines()
        return tuple(line.rstrip() for line in lines if line.strip())[-count:]


class Family:
    """The processes of this launch. It must be made, and used, in the main thread."""

    def __init__(self) -> None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._members: dict[int, Member] = {}
        self._earlier = frozenset(descendants(os.getpid()))

    def start(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        output: IO[bytes] | None = None,
        stdin: int = subprocess.DEVNULL,
        stderr: int = subprocess.STDOUT,
    ) -> Member:
        """Start a process out of reach of the terminal's Ctrl-C, which is killed if this process dies.

        Killed, because Ray's own end by SIGTERM can stand still; what it has started ends with it.

        What it prints goes to a file that its `Member` reads, or to `output`. Raises OSError.
        """
        kept = None if output else tempfile.TemporaryFile()  # noqa: SIM115 - it is closed with the process
        process = subprocess.Popen(
            command,
            env=dict(environ),
            stdin=stdin,
            stdout=output or kept,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        self._members[process.pid] = Member(process, kept)
        return self._members[process.pid]

    def reap(self) -> None:
        """Take the statuses of the orphans that have ended, which would stay as zombies."""
        for member in self._members.values():
            member.process.poll()
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            member_or_none = self._members.get(ended.si_pid)
            if member_or_none is not None:
                member_or_none.process.poll()
            else:
                os.waitpid(ended.si_pid, 0)

    def left(self) -> list[int]:
        """Return the ids of the processes that descend from this one, and that it did not have at the beginning."""
        self.reap()
        return [pid for pid in descendants(os.getpid()) if pid not in self._earlier]

    def end(self, patience: float, impatient: Callable[[], bool] = lambda: False) -> list[int]:
        """End them all: the started ones are asked, and after `patience` seconds the whole family is killed.

        Returns the ids of those that even then have not ended.
        """
        for member in self._members.values():
            if member.process.poll() is None:
                _send(member.process.pid, signal.SIGTERM)
        ends = time.monotonic() + patience
        while self.left() and time.monotonic() < ends and not impatient():
            # Those whose parents have ended hear of it from nobody else.
            if all(member.process.poll() is not None for member in self._members.values()):
                for pid in self.left():
                    _send(pid, signal.SIGTERM)
            time.sleep(0.2)
        ends = time.monotonic() + _KILLED
        while (left := self.left()) and time.monotonic() < ends:
            for pid in left:
                _send(pid, signal.SIGKILL)
            time.sleep(0.05)
        return left


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """Return the ids of all processes below one, by proc(5)'s stat."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            try:
                stat = Path(entry.path, "stat").read_text(errors="replace")
            except OSError:
                continue  # it has ended meanwhile
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found
