"""A control group (cgroup), which the kernel uses to limit all processes of a sandbox together. A control group is
used if verl-npu can create one, which is possible in two cases: if a folder of the cgroup file system is writable (as
for root, or in a container that was given one), or if systemd creates a scope for the user. Sources: cgroups(7);
Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of Linux; systemd-run(1)."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_V2, _V1 = "memory.max", "memory.limit_in_bytes"
_MOST_TRIES, _PAUSE = 250, 0.02
_SYSTEMD = "systemd-run"


@dataclass(slots=True)
class Group:
    """A control group, or a systemd scope, that a sandboxed command runs in."""

    folder: Path | None
    """The folder of the control group. For a scope, None until a process runs in it."""
    command: tuple[str, ...] = ()
    """A prefix for the command that creates the scope. Empty if the process joins the group itself."""
    members: int | None = None
    """An open file. A process joins the group by writing to it."""

    def join(self) -> None:
        """Add the calling process, with its future descendants, to the group."""
        if self.members is not None:
            os.write(self.members, b"0")

    def follow(self, pid: int) -> None:
        """Find the cgroup folder of the systemd scope that a process runs in."""
        if self.command:
            self.folder = _folder_of(Path(f"/proc/{pid}/cgroup"), "")

    def refused(self) -> bool:
        """Return whether the kernel has killed a process in the group for exceeding the memory limit."""
        if self.folder is None:
            return False
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError):
                words = dict(line.split(" ", 1) for line in (self.folder / name).read_text().splitlines())
                return int(words.get("oom_kill", 0)) > 0
        return False


@contextlib.contextmanager
def group(memory: int, processes: int) -> Iterator[Group | None]:
    """Context manager that creates a group with these limits, and removes the group at the end of the `with` block. It
    yields None if the group cannot be created."""
    made = (_made(memory, processes) or _scope(memory, processes)) if memory else None
    try:
        yield made
    finally:
        if made is not None and made.members is not None and made.folder is not None:
            os.close(made.members)
            _remove(made.folder)


def _made(memory: int, processes: int) -> Group | None:
    """Create a group below this process's own group or, because only leaf groups have processes in version 2, beside
    it."""
    for controller, limit in (("", _V2), ("memory", _V1)):
        own = _folder_of(Path("/proc/self/cgroup"), controller)
        for parent in (own, own.parent) if own is not None and own != ROOT else (own,) if own else ():
            made = parent / f"verl-npu-{os.getpid()}-{time.monotonic_ns()}"
            try:
                made.mkdir()
            except OSError:
                continue
            try:
                _write(made / limit, memory)
                _limit_more(made, memory, processes)
                _check_joinable(made)
            except OSError:
                _remove(made)
                continue
            return Group(made, members=os.open(made / "cgroup.procs", os.O_WRONLY))
    return None


def _limit_more(folder: Path, memory: int, processes: int) -> None:
    """Set additional limits that only some kernels support."""
    more = {
        "memory.swap.max": 0,
        "memory.memsw.limit_in_bytes": memory,
        "memory.oom.group": 1,
        "pids.max": processes,
    }
    for name, value in more.items():
        if (folder / name).exists():
            _write(folder / name, value)


def _write(file: Path, value: int) -> None:
    """Write to an existing file. Raise OSError if it does not exist, because the folder is then not a real cgroup."""
    with open(os.open(file, os.O_WRONLY), "w") as opened:
        opened.write(str(value))


def _check_joinable(folder: Path) -> None:
    """Raise OSError if a child process cannot join the group."""
    joined = ["sh", "-c", 'echo 0 > "$0"', str(folder / "cgroup.procs")]
    done = subprocess.run(joined, env={}, stderr=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise OSError(folder)


def _folder_of(file: Path, controller: str) -> Path | None:
    """Return a group's folder from /proc/PID/cgroup, either of version 2 or of a controller of version 1."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            found = ROOT / controller / path.lstrip("/")
            return found if (found / "cgroup.procs").is_file() else None
    return None


def _scope(memory: int, processes: int) -> Group | None:
    program = _systemd()
    if not program:
        return None
    limits = (f"MemoryMax={memory}", "MemorySwapMax=0", f"TasksMax={processes}")
    options = [word for limit in limits for word in ("--property", limit)]
    return Group(None, (program, *_SCOPE, *options, "--"))


_SCOPE = ("--user", "--scope", "--quiet", "--collect")


@cache
def _systemd() -> str:
    """Return the path of systemd-run, or an empty string if systemd-run cannot create scopes."""
    program = shutil.which(_SYSTEMD)
    if program is None or not (ROOT / "cgroup.controllers").is_file():
        return ""
    try:
        done = subprocess.run([program, *_SCOPE, "true"], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return program if done.returncode == 0 else ""


def _remove(folder: Path) -> None:
    """Remove a group. Several attempts are made, because the kernel takes a moment to release its processes."""
    for _ in range(_MOST_TRIES):
        with contextlib.suppress(FileNotFoundError):
            try:
                folder.rmdir()
            except OSError:
                time.sleep(_PAUSE)
                continue
        return
