"""Finds the jobs on this host and their processes, using the kernel's and Ray's files.

A process belongs to a Ray job if it has one of Ray's logs open, and if the log's name or the process's environment
contains the job id. A rank of torchrun has RANK in its environment. The children of these processes belong to the job,
too. No signal or message is sent to any process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from verl_npu.errors import CommandError

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_RAY_LOG = re.compile(
    r"(?P<session>.*/session_[^/]+)/logs/python-core-(?P<what>driver|worker)-(?P<worker>[0-9a-f]+)_\d+\.log$"
)
_GCS = re.compile(r"--gcs-address=(?P<address>[\w.:\[\]-]{1,200})")
_RAY_JOB = re.compile(r"[0-9a-f]{8}")
_NO_JOB = "f" * 8
"""The job ID in a Ray worker that waits for its first task."""
_MOST_BYTES = 1 << 20
_LONGEST_TITLE = 160
_FIRST_WORDS = 400
"""How many characters at the beginning of a command line are searched for the program."""
_RAY_SERVICES = re.compile(
    r"/ray/(?:dashboard|autoscaler|_private(?!/workers/))/|/ray/core/src/ray/|\braylet\b|^ray-dashboard-"
    r"|from multiprocessing\.resource_tracker import main\b"
)
"""Ray's own processes, and the resource trackers that Python starts for shared memory."""
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
    """The processor time of all its threads, in seconds."""
    began: int
    """The start time in the kernel's clock ticks. Process IDs are reused, but the ID and the start time together are
    unique."""


@dataclass(frozen=True, slots=True)
class Rank:
    """The rank of a process in its group, read from its environment."""

    rank: int
    size: int
    group: str
    """The address that the ranks of the group use to connect to each other."""
    local: int
    """The number of ranks of the group on this host. It is 0 if unknown."""


@dataclass(frozen=True, slots=True)
class Job:
    """The part of a job that runs on this host."""

    name: str
    """The ID of the Ray job; without Ray, the ID of the process that launched the job."""
    session: str
    """The folder of Ray's session. Empty without Ray."""
    roots: tuple[int, ...]


def processes() -> dict[int, Process]:
    """Return all processes that this process can see, as a mapping from process IDs to processes."""
    found = {}
    for entry in os.scandir(_PROC):
        if entry.name.isdecimal() and (process := process_of(int(entry.name))) is not None:
            found[process.pid] = process
    return found


def process_of(pid: int) -> Process | None:
    """Return the kernel's description of a process, or None if the process has exited."""
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
    """Return the rank of a process, or None if the process has no rank or belongs to another user."""
    told = environ_of(pid)
    try:
        rank, size = int(told["RANK"]), int(told["WORLD_SIZE"])
        local = int(told.get("LOCAL_WORLD_SIZE") or 0)
    except (KeyError, ValueError):
        return None
    return Rank(rank, size, f"{told.get('MASTER_ADDR', '')}:{told.get('MASTER_PORT', '')}", local)


def environ_of(pid: int) -> dict[str, str]:
    """Return the environment variables that a process was started with, or an empty mapping if reading them is not
    permitted."""
    try:
        raw = _read(pid, "environ")
    except OSError:
        return {}
    pairs = (item.partition("=") for item in raw.decode(errors="replace").split("\0"))
    return {name: value for name, equals, value in pairs if equals}


def jobs(seen: Mapping[int, Process]) -> list[Job]:
    """Return the jobs on this host, except the job that this process belongs to."""
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
            if name not in ("", _NO_JOB, own_job):
                by_ray.setdefault((session, name), []).append(pid)
        elif rank_of(pid) is not None and not _is_of_ray(pid, seen):
            launchers[_launcher(pid, seen, own)] = None
    found = [Job(name, session, tuple(roots)) for (session, name), roots in by_ray.items()]
    return found + [Job(str(pid), "", (pid,)) for pid in launchers]


def is_ray_job(name: str) -> bool:
    """Return whether a string looks like the id of a Ray job."""
    return _RAY_JOB.fullmatch(name) is not None


def chosen(found: Iterable[Job], asked: str, seen: Mapping[int, Process]) -> Job:
    """Return the job with this Ray job ID or process ID. If `asked` is empty, return the only job.

    Raises:
        CommandError: no job matches, or more than one job matches.
    """
    found = list(found)
    if asked.isdecimal() and not is_ray_job(asked):
        return _job_of_process(int(asked), found, seen)
    fitting = [job for job in found if asked in ("", job.name)]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(f"{job.name} ({seen[job.roots[0]].title[:60]})" for job in found)
    raise CommandError(
        subject="--hang" + (f" {asked}" if asked else ""),
        expected="exactly one job on this host, or --hang with the ID of a process or of a Ray job",
        found=f"{len(found)}: {names}" if found else "no visible process of Ray and no rank of torchrun",
        fix="specify one of these IDs after --hang"
        if found
        else "run this command on a host of the job, as the job's user or as root, or specify the ID of a process of "
        "the job",
    )


def _job_of_process(pid: int, found: Iterable[Job], seen: Mapping[int, Process]) -> Job:
    if pid not in seen:
        raise CommandError(
            subject=f"--hang {pid}",
            expected="the ID of a process on this host",
            found="no such process",
            fix="find the ID with `ps -eo pid,etime,cmd`",
        )
    above = {pid, *ancestors(pid, seen)}
    return next((job for job in found if above & {*job.roots}), Job(str(pid), "", (pid,)))


def members(job: Job, seen: Mapping[int, Process]) -> list[Process]:
    """Return the job's Python processes on this host and their children. Ray's own services are omitted."""
    roots = {*job.roots}
    return [
        process
        for pid, process in sorted(seen.items())
        if ({pid, *ancestors(pid, seen)} & roots)
        and pid != os.getpid()
        and not _RAY_SERVICES.search(_words(pid)[:_FIRST_WORDS])
        and _is_python(pid)
    ]


def ancestors(pid: int, seen: Mapping[int, Process]) -> Iterator[int]:
    """Yield the ids of a process's ancestors, the nearest first."""
    passed: set[int] = set()
    while pid in seen and pid not in passed:
        passed.add(pid)
        pid = seen[pid].parent
        if pid in seen:
            yield pid


def gcs_address(job: Job, seen: Mapping[int, Process]) -> str:
    """Return the address of a Ray job's cluster, from the command line of the job's raylet, or an empty string if no
    address is found."""
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
        # A zombie has no program anymore.
        return any(word in _words(pid) for word in _SHELLS)


def _ray_job_of(pid: int) -> tuple[str, str] | None:
    """Return Ray's session folder and the job ID, from the log that Ray's library keeps open in the process, or None
    if the process has no such log open. The ID is an empty string for a worker without a job."""
    try:
        with os.scandir(_PROC / str(pid) / "fd") as entries:
            files = [os.readlink(entry.path) for entry in entries]
    except OSError:
        return None
    for file in files:
        found = _RAY_LOG.match(file)
        if found:
            # A driver's worker ID begins with the job's ID.
            name = found["worker"][:8] if found["what"] == "driver" else environ_of(pid).get("RAY_JOB_ID", "")
            return found["session"], name if is_ray_job(name) else ""
    return None


def _is_of_ray(pid: int, seen: Mapping[int, Process]) -> bool:
    return any("raylet" in seen[above].title for above in ancestors(pid, seen))


def _launcher(pid: int, seen: Mapping[int, Process], own: set[int]) -> int:
    """Return the topmost Python process among a rank's ancestors: torchrun, or the script that started torchrun."""
    top = pid
    for above in ancestors(pid, seen):
        if above in own or not _is_python(above):
            break
        top = above
    return top
