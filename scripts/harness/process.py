"""Runs a command with a log and a time limit, and ends every process that it leaves behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from verl_npu_workbench.processes import Interrupted, Interruptions, ProcessTree

from harness.errors import Stopped

_GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""


@dataclass(frozen=True)
class Ended:
    """The result of a command: its exit status, its duration, and whether the time limit ended it."""

    status: int
    seconds: float
    timed_out: bool


def run(
    command: list[str],
    environment: dict[str, str],
    folder: Path,
    log: Path,
    timeout: float | None,
    tick: Callable[[], None] = lambda: None,
) -> Ended:
    """Run a command, write its output to `log`, and call `tick` twice a second. When this function returns, all
    processes of the command have ended.

    On Ctrl-C, SIGTERM, or SIGHUP, stop the command and raise Stopped.
    """
    started = time.monotonic()
    timed_out = False
    with Interruptions() as interruptions:
        processes = ProcessTree()
        try:
            with log.open("wb") as output:
                child = processes.start(command, environment, output, folder=folder).process
                while child.poll() is None:
                    tick()
                    if timeout is not None and time.monotonic() - started > timeout:
                        timed_out = True
                        break
                    interruptions.until(lambda: child.poll() is not None, 0.5)
        except Interrupted as signal:
            raise Stopped(signal.status) from signal
        finally:
            seconds = time.monotonic() - started
            processes.end(_GRACE, lambda: interruptions.impatient)
    status = child.wait()
    tick()
    return Ended(status=status, seconds=seconds, timed_out=timed_out)
