"""The time that processes had: what they wait for a processor, on a machine that is busy, does not count.

Linux says of each thread for how long it ran and for how long it could have run, in nanoseconds, in
/proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats.rst). Where it does not, all time counts.
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
"""How many times as long as it counts something may last: a machine may be too busy for any limit."""
_EVERY = 1.0
"""Seconds between two looks."""
_IDLE = 0.2
"""Of one processor; who uses less does nothing. Ray's own processes always do a little."""

_Thread = tuple[int, int]


class Clock:
    """Counts the seconds in which this process and all below it had what they needed of the processors."""

    def __init__(self, began: float | None = None) -> None:
        """`began` is when, by time.monotonic(), it begins to count; now if it is left out."""
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
        """Return how many seconds have counted."""
        wall = self.wall
        return wall - min(self._waited, wall * (1 - 1 / MOST))

    @property
    def wall(self) -> float:
        """Seconds since it began, as a clock on the wall has them."""
        return time.monotonic() - self._began

    @property
    def is_too_busy(self) -> bool:
        """Whether more was waited than may be left out of what counts."""
        return self._waited > self.wall * (1 - 1 / MOST)

    @property
    def idle(self) -> float:
        """Seconds since these processes last did anything, or waited to do it."""
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
            # Several threads wait at once: of the time in which any could run, the part that they did not.
            self._waited += min(passed, ready) * waited / (ran + waited)
            if ready > _IDLE * passed:
                self._worked_at = now
        self._looked, self._seen = now, threads


def _threads() -> Iterator[tuple[str, _Thread]]:
    """The threads of this process and of all below it: nanoseconds that each ran, and waited."""
    for pid in (os.getpid(), *descendants(os.getpid())):
        try:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                running, waiting, _turns = (thread / "schedstat").read_bytes().split()
                yield thread.name, (int(running), int(waiting))
        except (OSError, ValueError):
            continue  # it has ended meanwhile, or this Linux does not say
