"""A clock for processes. On a busy machine, it does not count the time during which the processes wait for a
processor.

Linux reports in /proc/PID/task/TID/schedstat how many nanoseconds each thread ran and waited to run
(Documentation/scheduler/sched-stats.rst). If this file does not exist, all time counts.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from ..processes import descendants

MOST = 4.0
"""The largest ratio of wall time to counted time. Without it, a very busy machine would extend a time limit without
end."""
_EVERY = 1.0
"""The seconds between two measurements."""
_IDLE = 0.2
"""The fraction of one processor below which processes count as idle. Ray's own processes always compute a little."""

_Thread = tuple[int, int]


class Clock:
    """Counts seconds, except those in which this process and its descendants wait for a processor."""

    def __init__(self, began: float | None = None) -> None:
        """`began` is the start time on time.monotonic()'s clock (default: now)."""
        self._began = time.monotonic() if began is None else began
        self._looked = self._worked_at = time.monotonic()
        self._seen = dict(_threads())
        self._waited = 0.0
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="clock", daemon=True)

    def __enter__(self) -> Clock:
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._ended.set()
        self._watcher.join()

    def now(self) -> float:
        """Return the seconds that the clock has counted so far."""
        wall = self.wall
        return wall - min(self._waited, wall * (1 - 1 / MOST))

    @property
    def wall(self) -> float:
        """The seconds of wall time since the start."""
        return time.monotonic() - self._began

    @property
    def is_too_busy(self) -> bool:
        """Whether the processes have waited so long for a processor that the clock might fail to exclude all of the
        waiting time."""
        return self._waited > self.wall * (1 - 1 / MOST)

    @property
    def idle(self) -> float:
        """The number of seconds since a measurement last showed this process or a descendant busy (running or waiting
        for a processor)."""
        return time.monotonic() - self._worked_at

    def _watch(self) -> None:
        while not self._ended.wait(_EVERY):
            self._look()

    def _look(self) -> None:
        now, threads = time.monotonic(), dict(_threads())
        passed = now - self._looked
        ran = waited = 0
        for thread, (running, waiting) in threads.items():
            ran_before, waited_before = self._seen.get(thread, (0, 0))
            ran += max(running - ran_before, 0)
            waited += max(waiting - waited_before, 0)
        if ready := (ran + waited) / 1e9:
            # Several threads wait at once: of the time in which any was ready, take the fraction of waiting.
            self._waited += min(passed, ready) * waited / (ran + waited)
            if ready > _IDLE * passed:
                self._worked_at = now
        self._looked, self._seen = now, threads


def _threads() -> Iterator[tuple[str, _Thread]]:
    """Yield the threads of this process and its descendants, with the nanoseconds that each thread ran and waited."""
    for pid in (os.getpid(), *descendants(os.getpid())):
        try:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                running, waiting, _turns = (thread / "schedstat").read_bytes().split()
                yield thread.name, (int(running), int(waiting))
        except (OSError, ValueError):
            continue  # the process has ended, or this Linux does not report the times
