"""Progress of a command: its current step, how much of the step is done, and how long the step has taken so far.

In a terminal, one line on stderr is rewritten. Without a terminal, a new line appears on stderr every few seconds.
Nothing goes to stdout, because a program may read it. Outside of the context `shown`, steps cost nothing and print
nothing.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

from .language import gettext as _
from .language import translate
from .reporting import clean

EVERY = 6.0
"""How many seconds to wait between two lines if there is no terminal. Nobody should wait ten seconds without a line,
even on a busy machine that delays the thread which writes the lines."""
_REWRITE_EVERY = 0.5
_FIRST = 1.0
"""How many seconds to wait before a terminal shows the first line. A step that takes less time needs no line."""
_ESTIMATE_AFTER = 3.0
"""After how many seconds the remaining time can be estimated."""
_LONGEST = 200


@dataclass(slots=True)
class Step:
    """One step of a command, and the part of the step that is done."""

    what: str
    total: float = 0.0
    """The amount of work. 0 if it is not known."""
    unit: str = ""
    """The unit of `total`. If it is empty, progress is shown in percent."""
    done: float = 0.0
    detail: str = ""
    """The item that is being worked on. It may contain any text, because it is cleaned before it is shown."""
    measure: Callable[[], float] | None = None
    """A function that returns how much is done. If it is set, `done` is not used."""
    thread: int = field(default_factory=threading.get_ident)
    began: float = field(default_factory=time.monotonic)
    _first: float | None = None
    """How much was already done when the total became known. It is not 0 if, for example, an evaluation continues an
    earlier one."""

    def __post_init__(self) -> None:
        if self.total:
            self._first = self.done

    def text(self) -> str:
        """Return a text that describes the step."""
        seconds = time.monotonic() - self.began
        done = self.measure() if self.measure is not None and self.total else self.done
        if self._first is None and self.total:
            self._first = done
        said = [_("{what}: {detail}").format(what=self.what, detail=self.detail) if self.detail else self.what]
        if self.unit:
            counted = _("{done:g} of {total:g} {unit}") if self.total else _("{done:g} {unit}")
            said.append(counted.format(done=done, total=self.total, unit=self.unit))
        elif self.total:
            said.append(f"{min(done / self.total, 1):.0%}")
        said.append(_duration(seconds))
        if seconds > _ESTIMATE_AFTER and self._first is not None and self._first < done < self.total:
            left = seconds * (self.total - done) / (done - self._first)
            said.append(_("about {duration} more").format(duration=_duration(left)))
        return _(", ").join(said)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return _("{seconds:.0f} s").format(seconds=seconds)
    return _("{minutes:.0f} min").format(minutes=seconds / 60)


_steps: list[Step] = []
_lock = threading.RLock()
"""A lock for the steps and for the line on the terminal."""


@contextmanager
def step(
    what: str, *, total: float = 0.0, unit: str = "", measure: Callable[[], float] | None = None
) -> Iterator[Step]:
    """Context manager that shows `what` as the current step. While a nested step runs in the same thread, the nested
    step is shown instead.

    Args:
        measure: a function that returns how much of `total` is done. Without it, the step's `done` attribute is used.
    """
    made = Step(what, total, unit, measure=measure)
    with _lock:
        _steps.append(made)
    try:
        yield made
    finally:
        with _lock:
            _steps.remove(made)
            clear()


def now() -> str:
    """Return a description of the innermost step of each thread, or an empty string if there is no step."""
    with _lock:
        latest = {each.thread: each for each in _steps}
        return _("; ").join(each.text() for each in latest.values())


class _Shown:
    """A thread that writes the current steps to a stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rewrites = stream.isatty()
        self._dirty = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self.clear()

    def clear(self) -> None:
        """Remove the progress line, so that something else can be printed."""
        if self._dirty:
            self._dirty = False
            self._write("\r\x1b[K")

    def _run(self) -> None:
        # Wait only half as long at first: Python has been importing without a word until here.
        wait = _FIRST if self._rewrites else EVERY / 2
        while not self._ended.wait(wait):
            wait = _REWRITE_EVERY if self._rewrites else EVERY
            with _lock:
                text = clean(translate(now()))[:_LONGEST]
                if not text:
                    self.clear()
                    wait /= 4  # a step may begin soon, and the last line is already old
                elif self._rewrites:
                    self._dirty = True
                    self._write(f"\r\x1b[K{text[: max(_columns(self._stream) - 1, 1)]}")
                else:
                    self._write(f"verl-npu: {text}\n")

    def _write(self, text: str) -> None:
        encoding = self._stream.encoding or "utf-8"
        try:
            self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError):  # a closed stream is no reason to end the command
            self._ended.set()


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


_shown: _Shown | None = None


@contextmanager
def shown() -> Iterator[None]:
    """Context manager that shows the current steps on stderr. A nested use has no effect."""
    global _shown
    stream: TextIO | None = sys.stderr  # None where the descriptor is closed
    if _shown is not None or stream is None:
        yield
        return
    _shown = _Shown(stream)
    _shown.start()
    try:
        yield
    finally:
        ended, _shown = _shown, None
        ended.end()


def clear() -> None:
    """Remove the progress line from the terminal."""
    with _lock:
        if _shown is not None:
            _shown.clear()


@contextmanager
def suspended() -> Iterator[None]:
    """Remove the progress line. Within the `with` block, no progress line is written, so that something else can be
    printed."""
    with _lock:
        clear()
        yield
