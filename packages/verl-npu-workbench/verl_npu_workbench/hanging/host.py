"""The jobs that run on this host and their processes, by what the kernel and Ray's files say.

A process of a Ray job holds a log of Ray's open whose name has the job's id in it or whose environment has; a rank of
torchrun has RANK in its environment. What they start belongs to the job, too. Nobody is asked and nothing is sent.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from verl_npu.errors import HangError

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_LOG_OF_RAY = re.compile(
    r"(?P<session>.*/session_[^/]+)/logs/python-core-(?P<what>driver|worker)-(?P<worker>[0-9a-f]+)_\d+\.log$"
)
_GCS = re.compile(r"--gcs-address=(?P<address>[\w.:\[\]-]{1,200})")
_RAY_JOB = re.compile(r"[0-9a-f]{8}")
_OF_NOBODY = "f" * 8
"""The job of a worker of Ray's that waits for its first task."""
_MOST_BYTES = 1 << 20
_LONGEST_TITLE = 160
_FIRST_WORDS = 400
"""Characters of a command line in which the program stands."""
_OF_RAY_ITSELF = re.compile(
    r"/ray/(?:dashboard|autoscaler|_private(?!/workers/))/|/ray/core/src/ray/|\braylet\b|^ray-dashboard-"
    r"|from multiprocessing\.resource_tracker import main\b"
)
"""And the trackers of shared memory, which Python starts beside a process and which wait for its end."""
_SHELLS = ("python", "torchrun", "ray::")


@dataclass(frozen=True, slots=True)
class Process:
    """A process as the kernel describes it."""

    pid: int
    parent: int
    title: str
    state: str
    """The kernel's letter: R runs, S sleeps, D waits for a device or a disk, T is stopped, Z has ended."""
    seconds: float
    """Of the processor, all its threads together."""
    began: int
    """In the kernel's ticks: with the id it names one process for ever."""


@dataclass(frozen=True, slots=True)
class Rank:
    """What a process was told of its place among others."""

    rank: int
    size: int
    group: str
    """Where they meet."""
    local: int
    """How many of them are on this host; 0 if it was not told."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job as far as this host has it."""

    name: str
    """The Ray job's id, or the id of the process that started it."""
    session: str
    """Ray's folder; empty without Ray."""
    roots: tuple[int, ...]


def processes() -> dict[int, Process]:
    """Return all processes that can be seen, by id."""
    found = {}
    for entry in os.scandir(_PROC):
        if entry.name.isdecimal() and (process := process_of(int(entry.name))) is not None:
            found[process.pid] = process
    return found


def process_of(pid: int) -> Process | None:
    """Return what the kernel says of a process, or None if it has ended."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(errors="replace")
        words = _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
    name, _, rest = stat.partition("(")[2].rpartition(")")
    fields = rest.split()
    seconds = (int(fields[11]) + int(fields[12])) / _TICKS
    return Process(pid, int(fields[1]), (words or f"[{name}]")[:_LONGEST_TITLE], fields[0], seconds, int(fields[19]))


def rank_of(pid: int) -> Rank | None:
    """Return the place that a process has among others; None if it was told none, or is another user's."""
    told = environ_of(pid)
    try:
        rank, size = int(told["RANK"]), int(told["WORLD_SIZE"])
        local = int(told.get("LOCAL_WORLD_SIZE") or 0)
    except (KeyError, ValueError):
        return None
    return Rank(rank, size, f"{told.get('MASTER_ADDR', '')}:{told.get('MASTER_PORT', '')}", local)


def environ_of(pid: int) -> dict[str, str]:
    """Return the variables that a process was started with; none if they may not be read."""
    try:
        raw = _read(pid, "environ")
    except OSError:
        return {}
    pairs = (item.partition("=") for item in raw.decode(errors="replace").split("\0"))
    return {name: value for name, equals, value in pairs if equals}


def jobs(seen: Mapping[int, Process]) -> list[Job]:
    """Return the jobs of this host. What this very process belongs to is none."""
    own = {os.getpid(), *ancestors(os.getpid(), seen)}
    own_job = os.environ.get("RAY_JOB_ID", "")
    by_ray: dict[tuple[str, str], list[int]] = {}
    launchers: dict[int, None] = {}
    for pid in seen:
        if pid in own or os.getpid() in ancestors(pid, seen) or not _is_python(pid):
            continue
        belongs = _ray_job_of(pid)
        if belongs is not None:
            session, name = belongs
            if name not in ("", _OF_NOBODY, own_job):
                by_ray.setdefault((session, name), []).append(pid)
        elif rank_of(pid) is not None and not _is_of_ray(pid, seen):
            launchers[_launcher(pid, seen, own)] = None
    found = [Job(name, session, tuple(roots)) for (session, name), roots in by_ray.items()]
    return found + [Job(str(pid), "", (pid,)) for pid in launchers]


def is_ray_job(name: str) -> bool:
    """Whether a name has the form of a Ray job's id."""
    return _RAY_JOB.fullmatch(name) is not None


def chosen(found: Iterable[Job], asked: str, seen: Mapping[int, Process]) -> Job:
    """Return the job that is asked for by a Ray job's id or the id of a process; the only one without a word.

    Raises:
        HangError: there is none, or there are several.
    """
    found = list(found)
    if asked.isdecimal() and not is_ray_job(asked):
        return _job_of_process(int(asked), found, seen)
    fitting = [job for job in found if asked in ("", job.name)]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(f"{job.name} ({seen[job.roots[0]].title[:60]})" for job in found)
    raise HangError(
        subject="--hang" + (f" {asked}" if asked else ""),
        expected="one job of this host: a Ray job's id, or the id of one of its processes",
        found=f"{len(found)}: {names}" if found else "no process of Ray's and no rank of torchrun that can be seen",
        fix="name one of them"
        if found
        else "call it on a host of the job, as the user that runs it or as root, or "
        "name the id of one of its processes",
    )


def _job_of_process(pid: int, found: Iterable[Job], seen: Mapping[int, Process]) -> Job:
    if pid not in seen:
        raise HangError(
            subject=f"--hang {pid}",
            expected="the id of a process of this host",
            found="none that runs",
            fix="look for it with `ps -eo pid,etime,cmd`",
        )
    above = {pid, *ancestors(pid, seen)}
    return next((job for job in found if above & {*job.roots}), Job(str(pid), "", (pid,)))


def members(job: Job, seen: Mapping[int, Process]) -> list[Process]:
    """Return the job's processes on this host that run Python, what it started included, and none of Ray's own."""
    roots = {*job.roots}
    return [
        process
        for pid, process in sorted(seen.items())
        if ({pid, *ancestors(pid, seen)} & roots)
        and pid != os.getpid()
        and not _OF_RAY_ITSELF.search(_words(pid)[:_FIRST_WORDS])
        and _is_python(pid)
    ]


def ancestors(pid: int, seen: Mapping[int, Process]) -> Iterator[int]:
    """Yield the ids above a process, the nearest first."""
    passed: set[int] = set()
    while pid in seen and pid not in passed:
        passed.add(pid)
        pid = seen[pid].parent
        if pid in seen:
            yield pid


def gcs_address(job: Job, seen: Mapping[int, Process]) -> str:
    """Return where the cluster of a Ray job can be reached, by the command line of its raylet; empty if not found."""
    for pid in seen:
        words = _words(pid)
        if "raylet" in words[:400] and job.session and job.session in words:
            found = _GCS.search(words)
            if found:
                return found["address"]
    return ""


def _words(pid: int) -> str:
    try:
        return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _read(pid: int, name: str) -> bytes:
    with (_PROC / str(pid) / name).open("rb") as file:
        return file.read(_MOST_BYTES)


def _is_python(pid: int) -> bool:
    try:
        return Path(os.readlink(_PROC / str(pid) / "exe")).name.startswith("python")
    except OSError:
        # A process that has ended and was not asked for its status has no program any more.
        return any(word in _words(pid) for word in _SHELLS)


def _ray_job_of(pid: int) -> tuple[str, str] | None:
    """Ray's folder and the job's id, by the log that Ray's library keeps open; the id is empty for a worker that is
    nobody's yet."""
    try:
        with os.scandir(_PROC / str(pid) / "fd") as entries:
            files = [os.readlink(entry.path) for entry in entries]
    except OSError:
        return None
    for file in files:
        found = _LOG_OF_RAY.match(file)
        if found:
            # A driver's worker id begins with its job's.
            name = found["worker"][:8] if found["what"] == "driver" else environ_of(pid).get("RAY_JOB_ID", "")
            return found["session"], name if is_ray_job(name) else ""
    return None


def _is_of_ray(pid: int, seen: Mapping[int, Process]) -> bool:
    return any("raylet" in seen[above].title for above in ancestors(pid, seen))


def _launcher(pid: int, seen: Mapping[int, Process], own: set[int]) -> int:
    """The highest process above a rank that runs Python: torchrun, or the script that started it."""
    top = pid
    for above in ancestors(pid, seen):
        if above in own or not _is_python(above):
            break
        top = above
    return top
