"""Runs the stages, each in a separate process with a time limit. If a stage crashes, the other stages still run. When
a stage ends, all of its processes are terminated. A stage that takes too long is terminated, so that the whole proof
takes no longer than planned. The time during which a stage's processes wait for a processor on a busy machine does not
count, up to three times the counted time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from verl_npu import progress
from verl_npu.language import gettext as _

from ..processes import ProcessTree, own_python
from .clock import Clock
from .folder import Folder, writing
from .result import Check, StageResult, Verdict, judged
from .table import STAGES, Stage

_GRACE = 3.0
"""The seconds that a stage's process gets to end the processes that it started."""
_LEAST = 5.0
"""The shortest remaining time, in seconds, for a stage to begin. With less time left, the stage does not begin."""
_MOST_PRINTED = 64 << 20
_TAIL = 1 << 16
_STILL = 20.0
"""The seconds of inactivity after which the message about an ended stage says that the stage was idle."""


def run(
    folder: Folder,
    stages: Sequence[Stage],
    minutes: float,
    npus: int,
    told_of: Callable[[StageResult], None],
    recipe: Sequence[str] = (),
) -> None:
    """Run stages one after the other and save their results. Raises CommandError if a result cannot be saved.

    Args:
        folder: the folder of the proof.
        stages: the stages to run.
        minutes: the time for all of them.
        npus: the number of NPUs to use; 0 for all.
        told_of: a callback that receives each result.
        recipe: a launch script, with its arguments, that the training stage runs instead of its own jobs.
    """
    left = 60 * minutes
    spare = 0.0
    for stage in stages:
        share = 60 * minutes * stage.share
        limit = min(share + spare, left)
        given = recipe if stage.name == "training" else ()
        result = _one(folder, stage, limit, npus, given) if limit > _LEAST else _no_time(stage, minutes)
        left -= result.seconds - result.waited
        spare = max(spare + share - (result.seconds - result.waited), 0.0)
        folder.finish(result)
        told_of(result)


def chosen(names: Sequence[str]) -> tuple[Stage, ...]:
    """Return the stages with these names, in their usual order, or all stages if `names` is empty."""
    return tuple(stage for stage in STAGES if not names or stage.name in names)


def _no_time(stage: Stage, minutes: float) -> StageResult:
    cause = f"the {minutes:g} minutes were over; run it with --resume --stage {stage.name}"
    check = Check(name="time", verdict=Verdict.NOT_POSSIBLE, found=cause)
    return judged(stage.name, [check], 0.0, 0.0)


def _one(folder: Folder, stage: Stage, limit: float, npus: int, given: Sequence[str]) -> StageResult:
    """Run one stage until it ends or its time limit expires."""
    words = (stage.name, str(folder.record(stage.name)), str(folder.scratch(stage.name)), str(npus), f"{limit:.1f}")
    log = folder.log(stage.name)
    processes = ProcessTree()
    with (
        Clock() as clock,
        progress.step(_("{stage}: {title}").format(stage=stage.name, title=stage.title)),
        writing(log),
        log.open("wb") as output,
    ):
        try:
            started = processes.start(
                own_python("-m", "verl_npu_workbench.prove.stages", *words, *given), dict(os.environ), output
            ).process
            status = _wait(started.poll, clock, limit, log)
        finally:
            left = processes.end(_GRACE)
        seconds, counted = clock.wall, clock.now()
    recorded = folder.recorded(stage.name)
    ended = _ended(status, recorded.beginning, log)
    if left:
        ended = f"{ended or 'it ended'}, and {len(left)} of its processes could not be ended"
    too_busy = isinstance(status, _Left) and status.too_busy and not left
    said = {"left_out": ended} if too_busy else {"ended": ended}
    result = replace(judged(stage.name, recorded.checks, seconds, limit, **said), waited=seconds - counted)
    return replace(result, meaning=stage.meaning) if said.get("ended") and not result.meaning else result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Left:
    """The reason for terminating a process."""

    why: str
    too_busy: bool = False
    """Whether the reason is that other programs keep the machine too busy."""


def _wait(poll: Callable[[], int | None], clock: Clock, limit: float, log: Path) -> int | _Left:
    """Wait for a stage's process. Return its exit status, or the reason for terminating it."""
    while (status := poll()) is None:
        if clock.now() > limit:
            return _over(clock, limit)
        if log.stat().st_size > _MOST_PRINTED:
            return _Left(why=f"it printed more than {_MOST_PRINTED >> 20} MiB")
        time.sleep(0.1)
    return status


def _over(clock: Clock, limit: float) -> _Left:
    wall, idle = clock.wall, clock.idle
    waited = wall - clock.now()
    more = "; allow it more time with --resume --stage and more --minutes"
    if clock.is_too_busy and idle <= _STILL:
        why = (
            f"the machine was too busy: of {wall:.0f} s its processes waited more than {waited:.0f} s for a processor"
        )
        return _Left(why=f"{why}{more}", too_busy=True)
    parts = [f"no end after {limit:.0f} s"]
    if waited >= 1:
        parts.append(f"and {waited:.0f} s of waiting for a processor")
    if idle > _STILL:
        parts.append(f"in the last {idle:.0f} s of which its processes did nothing")
    return _Left(why=f"{', '.join(parts)}{more}")


def _ended(status: int | _Left, beginning: str, log: Path) -> str:
    """Describe how a process exited. Return an empty string if it finished normally."""
    if status == 0:
        return ""
    during = f" during the check {beginning!r}" if beginning else ""
    if isinstance(status, _Left):
        return f"{status.why}{during}"
    if status < 0:
        return f"its process was ended by {signal.Signals(-status).name}{during}"
    return f"its process ended with status {status}{during}: {_last_line(log)}"


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL))
        lines = file.read(_TAIL).decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")[:500]
