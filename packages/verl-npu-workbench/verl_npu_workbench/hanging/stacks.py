"""Reads the Python stacks of processes with py-spy, which reads a process's memory from outside without pausing the
process."""

from __future__ import annotations

import json
import linecache
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from verl_npu.language import gettext as _

PACKAGE = "py-spy"
MAIN = "MainThread"
_PATIENCE = 10.0
"""The time limit in seconds for one process."""
_TRIES = 3
"""The maximum number of attempts for one process. Reading may fail, because the process is not paused and changes
meanwhile."""
_AT_ONCE = 8
_MOST_FRAMES = 120
_MOST_THREADS = 60
_LONGEST = 200
_LARGEST_SOURCE = 4 << 20


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack."""

    function: str
    file: str
    line: int
    text: str = ""
    """The source code of the line. Empty if it cannot be read."""


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread and its frames, the innermost first."""

    name: str
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Stacks:
    """The threads of a process, or the reason why they cannot be read."""

    threads: tuple[Thread, ...] = ()
    problem: str = ""


def program() -> str:
    """Look for py-spy beside this interpreter and on PATH. Return its path, or an empty string if py-spy is not
    installed."""
    return shutil.which(PACKAGE, path=str(Path(sys.executable).parent)) or shutil.which(PACKAGE) or ""


def read(pids: Sequence[int]) -> dict[int, Stacks]:
    """Read the stacks of several processes in parallel."""
    spy = program()
    if not spy:
        return {pid: Stacks(problem=_("{package} is not installed").format(package=PACKAGE)) for pid in pids}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(pids, pool.map(lambda pid: _dump(spy, pid), pids), strict=True))


def _dump(spy: str, pid: int) -> Stacks:
    said = ""
    for _unused in range(_TRIES):
        try:
            done = subprocess.run(
                [spy, "dump", "--nonblocking", "--json", "--full-filenames", "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired:
            problem = _("{package} did not answer within {seconds:g} s")
            return Stacks(problem=problem.format(package=PACKAGE, seconds=_PATIENCE))
        except OSError as error:
            return Stacks(problem=f"{PACKAGE}: {error.strerror or error}")
        if done.returncode == 0:
            return _read(done.stdout)
        said = " ".join(done.stderr.decode(errors="replace").split())
    return Stacks(problem=_why(said))


def _why(said: str) -> str:
    if "ermission" in said:
        return _(
            "{package} may not read the process: run this command as the job's user or as root, and in a "
            "container started with --cap-add SYS_PTRACE"
        ).format(package=PACKAGE)
    return f"{PACKAGE}: {said[:_LONGEST]}"


def _read(answer: bytes) -> Stacks:
    try:
        threads = [_thread(each) for each in json.loads(answer)[:_MOST_THREADS]]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        problem = _("{package} answered in an unknown format ({kind}), so its version is not supported")
        return Stacks(problem=problem.format(package=PACKAGE, kind=type(error).__name__))
    return Stacks(tuple(thread for thread in threads if thread.frames))


def _thread(row: Mapping[str, object]) -> Thread:
    frames = row["frames"]
    if not isinstance(frames, list):
        raise TypeError("no list of frames")
    # After a fork, the first thread has the name of the thread that forked.
    name = MAIN if row.get("os_thread_id") == row.get("pid") else str(row.get("thread_name") or "")
    return Thread(name[:_LONGEST], tuple(_frame(each) for each in frames[:_MOST_FRAMES]))


def _frame(row: Mapping[str, object]) -> Frame:
    line = row["line"]
    file = str(row["filename"])
    number = line if isinstance(line, int) else 0
    return Frame(str(row["name"])[:_LONGEST], file[:_LONGEST], number, _source(file, number))


def _source(file: str, line: int) -> str:
    path = Path(file)
    try:
        if not path.is_absolute() or not path.is_file() or path.stat().st_size > _LARGEST_SOURCE:
            return ""
    except OSError:
        return ""
    return linecache.getline(file, line).strip()[:_LONGEST]
