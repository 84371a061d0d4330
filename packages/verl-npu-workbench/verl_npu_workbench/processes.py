"""The processes that a command starts, with all that descends from them; their end; signals; and ports.

Ray's workers, and what they start, lose their parents when Ray ends. The kernel gives orphans to the nearest ancestor
that asks for them (PR_SET_CHILD_SUBREAPER, prctl(2)), so all of them stay descendants of the command, and are found
by their ids: nobody else's process ever is.

A command is ended whole by Ctrl-C, SIGTERM and SIGHUP (`ended_whole`). Where something must not be left half done they
are noted when they come, and acted on later (`Interruptions`).
"""

from __future__ import annotations

import _thread
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)
_KILLED = 10.0
"""Seconds for the kernel to end what was killed; a process that waits for a device may take longer."""


_WITHOUT_P = "import sys; del sys.path[0]; del sys.argv[0]; import runpy; runpy.{run}(sys.argv[0], {more})"


def own_python(*words: str) -> list[str]:
    """Return the command of a Python of ours, which imports nothing from the folder that it is started in.

    `words` are -m and a module, or a file, with its arguments; -c and code are for those who know what it imports.
    """
    # What has no option -P is told by a line of code.
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", *words]
    if words[0] == "-m":
        code = _WITHOUT_P.format(run="_run_module_as_main", more="alter_argv=True")
        return [sys.executable, "-c", code, *words[1:]]
    if words[0] == "-c":
        return [sys.executable, "-c", f"import sys; del sys.path[0]; {words[1]}", *words[2:]]
    return [sys.executable, "-c", _WITHOUT_P.format(run="run_path", more="run_name='__main__'"), *words]


@dataclass(frozen=True, slots=True)
class Started:
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


class ProcessTree:
    """What this command starts. It must be made, and used, in the main thread."""

    def __init__(self) -> None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._members: dict[int, Started] = {}
        self._earlier = frozenset(descendants(os.getpid()))

    def start(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        output: IO[bytes] | None = None,
        stdin: int = subprocess.DEVNULL,
        stderr: int = subprocess.STDOUT,
        folder: Path | None = None,
    ) -> Started:
        """Start a process out of reach of the terminal's Ctrl-C, which is killed if this process dies.

        Killed, because Ray's own end by SIGTERM can stand still; what it has started ends with it.

        What it prints goes to a file that its `Started` reads, or to `output`. Raises OSError.
        """
        kept = None if output else tempfile.TemporaryFile()  # noqa: SIM115 - it is closed with the process
        process = subprocess.Popen(
            command,
            env=dict(environ),
            cwd=folder,
            stdin=stdin,
            stdout=output or kept,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        self._members[process.pid] = Started(process, kept)
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
        """End them all: the started ones are asked, and after `patience` seconds all are killed.

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


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK = 0.1
"""Seconds between two looks while waiting."""


class Interrupted(Exception):
    """The user, or what started us, ends the command."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(_in_words(number))

    @property
    def status(self) -> int:
        """The exit status of a process that a signal ended, as shells say it."""
        return 128 + self.number


class Signalled(KeyboardInterrupt):
    """A signal ends the command, wherever it is. As Ctrl-C always was, it is no Exception."""

    def __init__(self, number: int) -> None:
        self.status = 128 + number
        super().__init__(_in_words(number))


def _in_words(number: int) -> str:
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


@contextmanager
def ended_whole() -> Iterator[None]:
    """Raise Signalled where Ctrl-C, SIGTERM or SIGHUP comes, and end all that was started meanwhile when it has been
    dealt with; at once if another one comes. For a program's main thread.

    None is lost: what Python swallows on its way, because an object's end or C was being run, is raised once more, and
    what somebody else's code swallows when all is done.
    """
    processes = ProcessTree()
    came: list[int] = []
    inside = True

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if inside and not _is_on_its_way(sys.exc_info()[1]):
            raise Signalled(number)

    def again(signalled: Signalled) -> None:
        came.pop()
        _thread.start_new_thread(_send_later, (signalled.status - 128,))

    before = _handle(note)
    try:
        try:
            with _swallowed(again):
                yield
        finally:
            inside = False
    finally:
        if came:
            processes.end(_GRACE, lambda: len(came) > 1)
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if came and not _is_told(sys.exc_info()[1], came[0]):
            raise Signalled(came[0]) from None


def _is_on_its_way(error: BaseException | None) -> bool:
    """Whether what is being dealt with is a signal, or came while one was."""
    while error is not None and not isinstance(error, Signalled):
        error = error.__context__
    return error is not None


def _is_told(error: BaseException | None, number: int) -> bool:
    """Whether a program that ends by an error says that a signal ended it."""
    return isinstance(error, Signalled) or (isinstance(error, SystemExit) and error.code == 128 + number)


@contextmanager
def _swallowed(again: Callable[[Signalled], None]) -> Iterator[None]:
    """Hand on the signals that Python prints and forgets: an error in a callback has nobody to be raised in."""
    unraisable, printed = sys.unraisablehook, sys.excepthook

    def of_a_callback(found: sys.UnraisableHookArgs) -> None:
        if isinstance(found.exc_value, Signalled):
            again(found.exc_value)
        else:
            unraisable(found)

    def of_a_library(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, Signalled):
            again(error)
        else:
            printed(kind, error, trace)

    sys.unraisablehook, sys.excepthook = of_a_callback, of_a_library
    try:
        yield
    finally:
        sys.unraisablehook, sys.excepthook = unraisable, printed


def _send_later(number: int) -> None:
    time.sleep(_SOON)
    os.kill(os.getpid(), number)


_SOON = 0.05
"""Seconds in which a callback ends that a signal came into."""
_GRACE = 5.0
"""Seconds for what a command has started to end itself."""


def _handle(note: Callable[[int, FrameType | None], None]) -> dict[int, object]:
    """Have signals noted, and return what was done with them before."""
    before: dict[int, object] = {}
    for number in _SIGNALS:
        handler = signal.getsignal(number)
        # nohup and a shell's background jobs have signals ignored, and they stay so, but SIGTERM.
        if handler != signal.SIG_IGN or number == signal.SIGTERM:
            before[number] = signal.signal(number, note)
    return before


class Interruptions:
    """Signals that came while this is entered; handlers of before are put back afterwards."""

    def __init__(self) -> None:
        self._came: list[int] = []
        self._seen = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interruptions:
        self._before = _handle(self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)

    @property
    def impatient(self) -> bool:
        """Whether one came after the one that was raised last: there is to be no more waiting."""
        return len(self._came) > self._seen

    def check(self) -> None:
        """Raise Interrupted if a signal came."""
        if self.impatient:
            self._seen = len(self._came)
            raise Interrupted(self._came[0])

    def pause(self, seconds: float) -> None:
        """Wait. Raises Interrupted as soon as a signal comes."""
        ends = time.monotonic() + seconds
        while True:
            self.check()
            left = ends - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(_LOOK, left))

    def until(self, done: Callable[[], bool], seconds: float, every: float = _LOOK) -> bool:
        """Wait until something is done, and say whether it was in time. Raises Interrupted."""
        ends = time.monotonic() + seconds
        while not done():
            if time.monotonic() >= ends:
                return False
            self.pause(every)
        return True


_PATIENCE = 2.0
"""Seconds for a connection."""


def why_port_is_taken(host: str, port: int) -> str:
    """Return why nobody can listen at a port of this host, in the system's words; empty if it is free.

    `host` is one of its addresses, or empty for all of them.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def free_ports(count: int) -> list[int]:
    """Return different ports that are free now."""
    opened = [socket.socket() for _ in range(count)]
    try:
        for each in opened:
            each.bind(("", 0))
        return [int(each.getsockname()[1]) for each in opened]
    finally:
        for each in opened:
            each.close()


def answers(address: str, port: int) -> bool:
    """Whether somebody answers at a port of a host."""
    try:
        with socket.create_connection((address, port), _PATIENCE):
            return True
    except OSError:
        return False
