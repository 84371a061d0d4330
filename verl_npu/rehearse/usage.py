"""What a sandbox uses of the machine, as /proc tells it from outside."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..family import descendants

__all__ = ["Limits", "Watch", "adopting"]

_SET_SUBREAPER = 36
_GRACE = 10.0
_LOOK = 0.25
"""Seconds between two looks at all processes; a look takes milliseconds."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a sandbox may use before it is ended."""

    seconds: float
    processes: int = 512
    output: int = 1 << 20
    """Bytes of output that are kept; more is dropped, and 64 times as many end it."""
    memory: int = 0
    """Bytes that its processes may have of their own, together with what they write to files in memory; 0: any."""
    file: int = 0
    """Bytes of the largest file that it may write; 0: any."""


@contextmanager
def adopting() -> Iterator[None]:
    """Have all that is started meanwhile, and outlives what started it, become this process's own, and end it."""
    before = set(descendants(os.getpid()))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_SET_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
        until = time.monotonic() + _GRACE
        while left := [pid for pid in descendants(os.getpid()) if pid not in before]:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, os.WNOHANG)
            if time.monotonic() > until:
                break
            time.sleep(0.05)
    finally:
        libc.prctl(_SET_SUBREAPER, 0, 0, 0, 0)


class Watch:
    """Looks whether what a process has started keeps within its limits."""

    def __init__(self, limits: Limits, pid: int, log: Path) -> None:
        self.limits, self.pid, self.log = limits, pid, log
        self.started = self.looked = time.monotonic()
        self.others = _all_threads()

    def exceeded(self) -> str:
        """Return the limit that it is over, in words; empty if none. Called many times a second, it costs little."""
        limits, now = self.limits, time.monotonic()
        if now - self.started > limits.seconds:
            return f"it was still running after {limits.seconds:.0f} s"
        if self.log.stat().st_size > 64 * limits.output:
            return f"it printed more than {64 * limits.output >> 20} MiB"
        # Processes that double are seen by the number of all, before there are too many to be looked at.
        if now - self.looked < _LOOK and _all_threads() - self.others < limits.processes:
            return ""
        inside = descendants(self.pid)
        self.looked = time.monotonic()
        self.others = max(_all_threads() - len(inside), 0)
        if len(inside) > limits.processes:
            return f"it had {len(inside)} processes at once, and {limits.processes} are allowed"
        if limits.memory and memory_of(inside) > limits.memory:
            return f"it took more than {limits.memory >> 20} MiB of memory"
        return ""


def _all_threads() -> int:
    """Threads of the whole machine."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])


def memory_of(processes: Sequence[int]) -> int:
    """Return the bytes that processes have of their own, and that the files of their sandbox take in memory."""
    pages = 0
    for process in processes:
        try:
            _, resident, shared, *_ = Path(f"/proc/{process}/statm").read_text().split()
        except (OSError, ValueError):
            continue  # it ended meanwhile
        pages += int(resident) - int(shared)
    return pages * os.sysconf("SC_PAGE_SIZE") + max(map(_files, processes), default=0)


def _files(process: int) -> int:
    """Bytes in the file systems in memory that a process has, and this one has not."""
    try:
        mine = {line.split()[2] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
        its = {
            (words := line.split())[2]: words[4]
            for line in Path(f"/proc/{process}/mountinfo").read_text().splitlines()
            if " - tmpfs " in line
        }
        found = [
            _filesystem(f"/proc/{process}/root{place}", device) for device, place in its.items() if device not in mine
        ]
    except OSError:
        return 0  # it ended meanwhile
    return sum((each.f_blocks - each.f_bfree) * each.f_frsize for each in found if each is not None)


def _filesystem(place: str, device: str) -> os.statvfs_result | None:
    """What `place` is on, or None if that is not `device`: while a sandbox is made, its mounts still move."""
    opened = os.open(place, os.O_PATH)
    try:
        found = os.fstat(opened).st_dev
        return os.fstatvfs(opened) if f"{os.major(found)}:{os.minor(found)}" == device else None
    finally:
        os.close(opened)
