"""How a training stands by its console's log: it runs, came to its end, stopped or failed; how long the rest takes.

How many steps it makes, and that it came to its end, only the console's log says. What was before its last steps the
training got over: only what comes behind is judged.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from verl_npu.language import gettext as _

from .diagnosis.judgement import LoggedError, judge
from .logs.files import is_being_written
from .logs.metrics import STEP_SECONDS
from .logs.training import Follower, TrainingLog

_RECENT = 20
"""Steps of which the usual duration is taken."""
_LONGEST = 120
_GONE, _STEPS_GONE = 300.0, 5
"""Seconds, and steps of the usual duration, after which a log that no process of this host writes to is not written to
by one of another host either."""


class Standing(enum.Enum):
    """How a training stands."""

    RUNS = "runs"
    ENDED = "came to its end"
    STOPPED = "stopped without an end"
    FAILED = "failed"
    UNKNOWN = "not said by the log"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a training stands, and what is left of it."""

    standing: Standing
    step: int
    total: int
    """How many steps it makes; 0 if the log does not say it."""
    quiet: float
    """Seconds since the log was written to."""
    left: float | None
    """Seconds that the rest will take, if it is known how many steps and how long they take."""
    error: str = ""
    """The rule that knows the error at its end, or the error itself."""
    process: str = ""
    over: bool = False
    """Nobody writes to the log any more, as far as can be seen."""

    @property
    def odd(self) -> bool:
        """Whether somebody should look at it."""
        return self.standing in (Standing.STOPPED, Standing.FAILED)

    def text(self) -> str:
        """Return it in a sentence without a full stop; empty where there is nothing to say."""
        of = _("step {step} of {total}") if self.total else _("step {step}")
        place = of.format(step=self.step, total=self.total)
        if self.standing is Standing.RUNS:
            more = _("{place}, about {left} to go").format(place=place, left=duration(self.left or 0.0))
            return more if self.left is not None else place
        if self.standing is Standing.ENDED:
            return _("it came to its end, {place}").format(place=place)
        if self.standing is Standing.STOPPED:
            return _(
                "it stopped after {place} without an end: the last line is of {ago} ago, and no process of this host "
                "writes to the log"
            ).format(place=place, ago=duration(self.quiet))
        if self.standing is Standing.FAILED:
            return _(
                "it failed after {place}, {ago} ago: {error}, in {process}; `verl-npu doctor --log` says more"
            ).format(place=place, ago=duration(self.quiet), error=self.error, process=self.process)
        return ""


def duration(seconds: float) -> str:
    """Return a span of time as a person says it."""
    if seconds < 90:
        return _("{seconds:.0f} s").format(seconds=seconds)
    if seconds < 90 * 60:
        return _("{minutes:.0f} min").format(minutes=seconds / 60)
    if seconds < 48 * 3600:
        return _("{hours:.1f} h").format(hours=seconds / 3600)
    return _("{days:.1f} days").format(days=seconds / 86400)


def ending_of(follower: Follower, log: TrainingLog) -> Ending:
    """Return how the training of a log stands now. A log that is no console's says nothing of it."""
    files = follower.files()
    quiet = min(map(_quiet, files), default=0.0)
    written = not follower.ended and any(map(is_being_written, files))
    gone = quiet > max(_GONE, _STEPS_GONE * (_usual(log) or 0.0))

    def ending(
        standing: Standing, total: int = 0, left: float | None = None, error: str = "", process: str = ""
    ) -> Ending:
        certain = standing in (Standing.ENDED, Standing.FAILED)
        over = follower.ended or (not written and (certain or gone))
        return Ending(standing, log.last, total, quiet, left, error, process, over)

    if not follower.console:
        return ending(Standing.UNKNOWN)
    said = judge(follower.end(), str(follower.path), growing=written)
    total = said.progress.total or log.total
    if said.progress.ended or 0 < total <= said.progress.last:
        return ending(Standing.ENDED, total)
    if said.root is not None:
        return ending(Standing.FAILED, total, None, _named(said.root), str(said.root.event.process))
    if written:
        return ending(Standing.RUNS, total, _left(log, total))
    # Lines of steps alone are no whole console's log.
    return ending(Standing.STOPPED if total else Standing.UNKNOWN, total)


def _quiet(path: Path) -> float:
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return 0.0


def _named(error: LoggedError) -> str:
    return error.name or error.event.error[:_LONGEST]


def _left(log: TrainingLog, total: int) -> float | None:
    seconds = _usual(log)
    return None if seconds is None or total <= log.last else seconds * (total - log.last)


def _usual(log: TrainingLog) -> float | None:
    return _recent([value for step, value in STEP_SECONDS.of(log).items() if step <= log.last])


def _recent(values: Sequence[float]) -> float | None:
    # The first step of a run compiles and warms up.
    values = [*values[1:]] or [*values]
    return median(values[-_RECENT:]) if values else None
