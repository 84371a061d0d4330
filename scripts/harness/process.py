"""Running a command whole: its log, its time limit, and every process that it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MARK = "VERL_NPU_RUN_ID"
"""Ray's daemons and workers outlive and outgroup the driver; all inherit this variable, which tells them apart."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int
    seconds: float
    timed_out: bool


def survivors(run_id: str) -> list[int]:
    """Return the processes that carry this run's mark."""
    wanted = f"{MARK}={run_id}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue  # ended meanwhile, or somebody else's
        if wanted in environment.split(b"\0"):
            found.append(int(entry.name))
    return found


def end_all(run_id: str, grace: float = 5.0) -> None:
    """End every process of the run: asked first, then killed."""
    for sign, wait in ((signal.SIGTERM, grace), (signal.SIGKILL, grace)):
        for pid in survivors(run_id):
            try:
                os.kill(pid, sign)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + wait
        while survivors(run_id):
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        else:
            return


def run(
    command: list[str],
    environment: dict[str, str],
    folder: Path,
    log: Path,
    timeout: float | None,
    tick: Callable[[], None],
) -> Ended:
    """Run a command with its output in `log`, calling `tick` twice a second; nothing of it survives the return."""
    run_id = environment[MARK]
    started = time.monotonic()
    timed_out = False
    try:
        with log.open("wb") as output:
            child = subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            while child.poll() is None:
                tick()
                if timeout is not None and time.monotonic() - started > timeout:
                    timed_out = True
                    break
                time.sleep(0.5)
    finally:
        seconds = time.monotonic() - started
        end_all(run_id)
    status = child.wait()
    tick()
    return Ended(status=status, seconds=seconds, timed_out=timed_out)
