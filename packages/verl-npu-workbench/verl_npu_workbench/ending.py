"""How a training stands by its console's log: it runs, came to its end, stopped or failed; how long the rest takes.

How many steps it makes, and that it came to its end, only the console's log says. The whole log is read for that.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from verl_npu.language import gettext as _

from .diagnosis.judgement import Conclusion, LoggedError, diagnose
from .logs.metrics import STEP_SECONDS
from .logs.training import TrainingLog

_RECENT = 20
"""Steps of which the usual duration is taken."""
_LONGEST = 120


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


def ending_of(path: Path, log: TrainingLog) -> Ending:
    """Return how the training of a log stands now. A log that is no console's says nothing of it."""
    try:
        quiet = max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        quiet = 0.0
    if not path.is_file() or _is_of_a_logger(path):
        return Ending(Standing.UNKNOWN, log.last, 0, quiet, None)
    said = diagnose([path])
    progress = said.progress
    left = _left(log, progress.total)
    if said.verdict is Conclusion.NONE and progress.ended:
        return Ending(Standing.ENDED, log.last, progress.total, quiet, None)
    if said.root is not None:
        return Ending(
            Standing.FAILED, log.last, progress.total, quiet, None, _named(said.root), str(said.root.event.process)
        )
    if progress.growing:
        return Ending(Standing.RUNS, log.last, progress.total, quiet, left)
    # Lines of steps alone are no whole console's log.
    standing = Standing.STOPPED if progress.total else Standing.UNKNOWN
    return Ending(standing, log.last, progress.total, quiet, None)


def _is_of_a_logger(path: Path) -> bool:
    """Whether it is verl's file logger's, or TensorBoard's."""
    with path.open("rb") as file:
        return "tfevents" in path.name or file.read(1) == b"{"


def _named(error: LoggedError) -> str:
    return error.name or error.event.error[:_LONGEST]


def _left(log: TrainingLog, total: int) -> float | None:
    seconds = _recent([value for step, value in STEP_SECONDS.of(log).items() if step <= log.last])
    return None if seconds is None or total <= log.last else seconds * (total - log.last)


def _recent(values: Sequence[float]) -> float | None:
    # The first step of a run compiles and warms up.
    values = [*values[1:]] or [*values]
    return median(values[-_RECENT:]) if values else None
