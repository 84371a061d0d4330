"""Handles child processes with all their descendants, signals, and ports.

Ray's workers and their children lose their parents when Ray ends. The kernel gives orphans to the nearest ancestor
that asks for them (PR_SET_CHILD_SUBREAPER, prctl(2)). They therefore stay descendants of the command, which finds them
by their IDs and never touches anybody else's process.

Ctrl-C, SIGTERM, and SIGHUP terminate a command together with everything that it started (`ended_whole`). Where work
must not be left half done, signals are only recorded, and they take effect later (`Interruptions`).
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
"""The seconds that the kernel gets to end a killed process. A process that waits for a device may take longer."""


_WITHOUT_P = "import sys; del sys.path[0]; del sys.argv[0]; import runpy; runpy.{run}(sys.argv[0], {more})"


def own_python(*words: str) -> list[str]:
    """Return a command line that runs Python without importing anything from the working directory.

    `words` are a file, `-m` and a module, or `-c` and code, in each case followed by arguments.
    """
    # Python 3.10 has no option -P: a line of code does the same.
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", *words]
    if words[0] == "-m":
        code = _WITHOUT_P.format(run="_run_module_as_main", more="alter_argv=True")
        return [sys.executable, "-c", code, *words[1:]]
    if words[0] == "-c":
        return [sys.executable, "-c", f"import sys; del sys.path[0]; {words[1]}", *words[2:]]
    return [sys.executable, "-c", _WITHOUT_P.format(run="run_path", more="run_name='__main__'"), *words]


def captured(
    command: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command without input, and return its exit status and its output."""
    return subprocess.run(
        command,
        env=env,
        cwd=cwd,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


@dataclass(frozen=True, slots=True)
class Started:
    """One process that verl-npu started, and its output."""

    process: subprocess.Popen[bytes]
    output: IO[bytes] | None

    def last_lines(self, count: int) -> tuple[str, ...]:
        """Return the last `count` non-empty lines of the process's output."""
        if self.output is None:
            return ()
        self.output.seek(0)
        lines = self.output.read().decode(errors="replace").splitlines()
        return tuple(line.rstrip() for line in lines if line.strip())[-count:]


class ProcessTree:
    """The processes that this command starts, with their descendants. Use it only in the main thread."""

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
        """Start a process that does not receive the terminal's Ctrl-C. The kernel kills the new process if the current
        process dies.

        The kernel uses SIGKILL, because Ray can hang when it handles SIGTERM. The children of the new process are
        killed, too.

        The output of the new process goes to `output`, or by default to a temporary file that `Started` reads. Raises
        OSError if the process cannot be started.
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
        """Reap the orphaned descendants that have exited, so that they do not remain zombies."""
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
        """Return the IDs of all running descendants of this process, except descendants that already existed when this
        object was created."""
        self.reap()
        return [pid for pid in descendants(os.getpid()) if pid not in self._earlier]

    def end(self, patience: float, impatient: Callable[[], bool] = lambda: False) -> list[int]:
        """Terminate all processes: send SIGTERM and, after `patience` seconds, SIGKILL. Return the IDs of processes
        that survive even SIGKILL."""
        for member in self._members.values():
            if member.process.poll() is None:
                _send(member.process.pid, signal.SIGTERM)
        ends = time.monotonic() + patience
        while self.left() and time.monotonic() < ends and not impatient():
            # After their parents have exited, no other process stops orphans.
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
    """Return the IDs of all descendants of a process, from /proc/*/stat (proc(5))."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            try:
                stat = Path(entry.path, "stat").read_text(errors="replace")
            except OSError:
                continue  # the process has ended meanwhile
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK = 0.1
"""The seconds between two checks while waiting."""


class Interrupted(Exception):
    """Raised when `Interruptions` has recorded a signal that requests the end of the command."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(_signal_name(number))

    @property
    def status(self) -> int:
        """The exit status that shells report for a process terminated by this signal."""
        return 128 + self.number


class Signalled(KeyboardInterrupt):
    """Raised when a signal terminates the command at once. Like KeyboardInterrupt, it is not a subclass of
    Exception."""

    def __init__(self, number: int) -> None:
        self.status = 128 + number
        super().__init__(_signal_name(number))


def _signal_name(number: int) -> str:
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


@contextmanager
def ended_whole() -> Iterator[None]:
    """Raise Signalled on Ctrl-C, SIGTERM, or SIGHUP, and then end every process that was started inside the `with`
    block.

    A second signal shortens the wait for those processes. Use this only in the main thread of a program.

    No signal is lost. If Python swallows the exception (in a destructor or in a callback from C), it is raised again a
    moment later. If other code swallows it, it is raised again at the end of the block.
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
    """Return whether the exception that is being handled is a Signalled, or was raised while a Signalled was being
    handled."""
    while error is not None and not isinstance(error, Signalled):
        error = error.__context__
    return error is not None


def _is_told(error: BaseException | None, number: int) -> bool:
    """Return whether the exception that terminates the program already reports this signal."""
    return isinstance(error, Signalled) or (isinstance(error, SystemExit) and error.code == 128 + number)


@contextmanager
def _swallowed(again: Callable[[Signalled], None]) -> Iterator[None]:
    """Call `again` for each Signalled that Python only prints, because an exception in a C callback cannot reach a
    caller."""
    unraisable, printed = sys.unraisablehook, sys.excepthook

    def unraisable_hook(found: sys.UnraisableHookArgs) -> None:
        if isinstance(found.exc_value, Signalled):
            again(found.exc_value)
        else:
            unraisable(found)

    def except_hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, Signalled):
            again(error)
        else:
            printed(kind, error, trace)

    sys.unraisablehook, sys.excepthook = unraisable_hook, except_hook
    try:
        yield
    finally:
        sys.unraisablehook, sys.excepthook = unraisable, printed


def _send_later(number: int) -> None:
    time.sleep(_SOON)
    os.kill(os.getpid(), number)


_SOON = 0.05
"""The seconds to wait so that the callback that the signal interrupted has returned."""
_GRACE = 5.0
"""The seconds that started processes get to end on their own."""


def _handle(note: Callable[[int, FrameType | None], None]) -> dict[int, object]:
    """Install `note` as the handler of the signals that end a command. Return the earlier handlers."""
    before: dict[int, object] = {}
    for number in _SIGNALS:
        handler = signal.getsignal(number)
        # nohup and background jobs of a shell ignore signals, and so does verl-npu, except SIGTERM.
        if handler != signal.SIG_IGN or number == signal.SIGTERM:
            before[number] = signal.signal(number, note)
    return before


class Interruptions:
    """Context manager that only records signals. When the `with` block ends, the earlier handlers are restored."""

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
        """Return whether another signal has been received since `check` last raised Interrupted. If so, the caller
        must stop waiting."""
        return len(self._came) > self._seen

    def check(self) -> None:
        """Raise Interrupted if a signal has been received."""
        if self.impatient:
            self._seen = len(self._came)
            raise Interrupted(self._came[0])

    def pause(self, seconds: float) -> None:
        """Wait. Raises Interrupted as soon as a signal is received."""
        ends = time.monotonic() + seconds
        while True:
            self.check()
            left = ends - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(_LOOK, left))

    def until(self, done: Callable[[], bool], seconds: float, every: float = _LOOK) -> bool:
        """Wait until `done()` returns true. Return False if that takes longer than `seconds`. Raises Interrupted if a
        signal is received while waiting."""
        ends = time.monotonic() + seconds
        while not done():
            if time.monotonic() >= ends:
                return False
            self.pause(every)
        return True


_PATIENCE = 2.0
"""The time limit for a connection, in seconds."""


def answers(address: str, port: int) -> bool:
    """Return whether a TCP connection to a port at this address succeeds."""
    try:
        with socket.create_connection((address, port), _PATIENCE):
            return True
    except OSError:
        return False
