"""What a command is doing, for who waits for it: what, how far, and for how long.

On a terminal it is one line of stderr that is rewritten, else lines of their own on stderr. Nothing of it goes to
stdout, which may be read by a program. Without `shown` a step costs nothing and says nothing.
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
"""Seconds between two lines where there is no terminal: nobody is to wait for ten without a word,
although the thread that writes them has to wait for its turn on a busy machine."""
_REWRITTEN = 0.5
_FIRST = 1.0
"""Seconds until a terminal is told: what is done sooner needs no line."""
_ESTIMATED = 3.0
"""Seconds after which what is left can be estimated."""
_LONGEST = 200


@dataclass(slots=True)
class Step:
    """Something that takes time, and how much of it is done."""

    what: str
    total: float = 0.0
    """All that there is to do; 0 if that is not known."""
    unit: str = ""
    """What is counted; without it a part of the total is said in percent."""
    done: float = 0.0
    detail: str = ""
    """What it is at; what others have written is cleaned when it is shown."""
    measure: Callable[[], float] | None = None
    """Says how much is done, when asked; in place of `done`."""
    thread: int = field(default_factory=threading.get_ident)
    began: float = field(default_factory=time.monotonic)
    _first: float | None = None
    """How much was done when the total became known: an evaluation goes on where an earlier one ended."""

    def __post_init__(self) -> None:
        if self.total:
            self._first = self.done

    def text(self) -> str:
        """Return it in words."""
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
        if seconds > _ESTIMATED and self._first is not None and self._first < done < self.total:
            left = seconds * (self.total - done) / (done - self._first)
            said.append(_("about {duration} more").format(duration=_duration(left)))
        return _(", ").join(said)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return _("{seconds:.0f} s").format(seconds=seconds)
    return _("{minutes:.0f} min").format(minutes=seconds / 60)


_steps: list[Step] = []
_lock = threading.RLock()
"""Of the steps, and of what the terminal shows."""


@contextmanager
def step(
    what: str, *, total: float = 0.0, unit: str = "", measure: Callable[[], float] | None = None
) -> Iterator[Step]:
    """Say meanwhile that `what` is being done. A step within another one, in the same thread, is said in its place.

    Args:
        measure: is asked how much of `total` is done; without it the step's `done` says that.
    """
    made = Step(what, total, unit, measure=measure)
    with _lock:
        _steps.append(made)
    try:
        yield made
    finally:
        with _lock:
            _steps.remove(made)
            aside()


def now() -> str:
    """Return what is being done: the innermost step of each thread; empty if nothing is."""
    with _lock:
        latest = {each.thread: each for each in _steps}
        return _("; ").join(each.text() for each in latest.values())


class _Shown:
    """A thread that says what is being done."""

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
        """Take the line away, so that others can print."""
        if self._dirty:
            self._dirty = False
            self._write("\r\x1b[K")

    def _run(self) -> None:
        # Half of it at first: until here Python has been importing without a word.
        wait = _FIRST if self._rewrites else EVERY / 2
        while not self._ended.wait(wait):
            wait = _REWRITTEN if self._rewrites else EVERY
            with _lock:
                text = clean(translate(now()))[:_LONGEST]
                if not text:
                    self.clear()
                    wait /= 4  # a step may begin soon, and has waited since the last line then
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
        except (OSError, ValueError):  # nobody reads it any more, which is no reason to end a command
            self._ended.set()


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


_shown: _Shown | None = None


@contextmanager
def shown() -> Iterator[None]:
    """Show meanwhile on stderr what is being done. Within itself it does nothing."""
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


def aside() -> None:
    """Take a line that is rewritten away."""
    with _lock:
        if _shown is not None:
            _shown.clear()


@contextmanager
def standing_aside() -> Iterator[None]:
    """Take a line that is rewritten away, and write none meanwhile: something else is printed."""
    with _lock:
        aside()
        yield
