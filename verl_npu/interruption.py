"""Ctrl-C and SIGTERM: noted when they come, and acted on where nothing is half done."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType, TracebackType

__all__ = ["Interrupted", "Interruptions"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK = 0.1
"""Seconds between two looks while waiting."""


class Interrupted(Exception):
    """The user, or what started us, ends the launch."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__({signal.SIGINT: "Ctrl-C"}.get(signal.Signals(number), signal.Signals(number).name))

    @property
    def status(self) -> int:
        """The exit status of a process that a signal ended, as shells say it."""
        return 128 + self.number


class Interruptions:
    """Signals that came while this is entered; handlers of before are put back afterwards."""

    def __init__(self) -> None:
        self._came: list[int] = []
        self._seen = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interruptions:
        for number in _SIGNALS:
            before = signal.getsignal(number)
            # nohup and a shell's background jobs have signals ignored, and they stay so, but SIGTERM.
            if before != signal.SIG_IGN or number == signal.SIGTERM:
                self._before[number] = signal.signal(number, self._note)
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
