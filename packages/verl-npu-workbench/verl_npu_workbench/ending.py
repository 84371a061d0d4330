"""The state of a training according to its console log (running, finished, stopped, or failed), and the remaining
time.

Other logs contain neither the total number of steps nor the end of the training. Errors before the last steps are
ignored, because the training survived them.
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
"""The number of recent steps. The median of their durations counts as the usual duration of a step."""
_LONGEST = 120
"""The most characters of an error that are shown."""
_GONE, _STEPS_GONE = 300.0, 5
"""Two limits on silence, in seconds and in usual step durations. After the longer of the two, we assume that no
process on another host still writes to the log."""


class Standing(enum.Enum):
    """The state of a training run."""

    RUNS = "runs"
    ENDED = "came to its end"
    STOPPED = "stopped without an end"
    FAILED = "failed"
    UNKNOWN = "not said by the log"


@dataclass(frozen=True, slots=True)
class Ending:
    """The state of a training and its remaining time."""

    standing: Standing
    step: int
    total: int
    """The number of steps of the whole training. It is 0 if the log does not say it."""
    quiet: float
    """The seconds since the last write to the log."""
    left: float | None
    """The remaining time in seconds. None if the number of steps or their duration is unknown."""
    error: str = ""
    """The error that ended the training: the code of the rule that matches it, or else its text."""
    process: str = ""
    over: bool = False
    """True if, as far as we can tell, no process writes to the log any more."""

    @property
    def odd(self) -> bool:
        """Return whether somebody should look at the training."""
        return self.standing in (Standing.STOPPED, Standing.FAILED)

    def text(self) -> str:
        """Describe the state in a sentence without a full stop. The result is empty if there is nothing to report."""
        of = _("step {step} of {total}") if self.total else _("step {step}")
        place = of.format(step=self.step, total=self.total)
        if self.standing is Standing.RUNS:
            more = _("{place}, about {left} to go").format(place=place, left=duration(self.left or 0.0))
            return more if self.left is not None else place
        if self.standing is Standing.ENDED:
            return _("the training finished, {place}").format(place=place)
        if self.standing is Standing.STOPPED:
            return _(
                "the training stopped after {place} without finishing: the last line was written {ago} ago, "
                "and no process on this host writes to the log"
            ).format(place=place, ago=duration(self.quiet))
        if self.standing is Standing.FAILED:
            return _(
                "the training failed after {place}, {ago} ago: {error}, in {process}; `verl-npu doctor "
                "--log` says more"
            ).format(place=place, ago=duration(self.quiet), error=self.error, process=self.process)
        return ""


def duration(seconds: float) -> str:
    """Format a duration in the most readable unit."""
    if seconds < 90:
        return _("{seconds:.0f} s").format(seconds=seconds)
    if seconds < 90 * 60:
        return _("{minutes:.0f} min").format(minutes=seconds / 60)
    if seconds < 48 * 3600:
        return _("{hours:.1f} h").format(hours=seconds / 3600)
    return _("{days:.1f} days").format(days=seconds / 86400)


def ending_of(follower: Follower, log: TrainingLog, quiet: float | None = None) -> Ending:
    """Return the present state of the training that writes this log. The log must be a console log.

    `quiet` is the number of seconds since the last write, if the caller has watched the log. Otherwise, the
    modification times of the log's files are used.
    """
    files = follower.files()
    quiet = quiet_of(follower) if quiet is None else quiet
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
    # A log that has only the lines of steps is not a complete console log.
    return ending(Standing.STOPPED if total else Standing.UNKNOWN, total)


def quiet_of(follower: Follower) -> float:
    """Return the number of seconds since the last write to a log. The number is wrong if somebody has changed the
    machine's clock in the meantime."""
    return min(map(_quiet, follower.files()), default=0.0)


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
