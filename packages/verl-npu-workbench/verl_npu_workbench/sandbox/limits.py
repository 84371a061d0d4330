"""The limits of a sandbox, and a watch for them: time, output, processes, memory of all kinds, and files.

With a `cgroup`, the kernel enforces the memory limit. With or without one, all memory is also added up several times a
second: private memory of processes, each shared object once, memory files that are not mapped (memfd_create(2)), and
file systems in memory.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from verl_npu.language import gettext as _

from ..processes import descendants
from .cgroup import Group

_LOOK = 0.25
"""The seconds between two inspections of all processes. The interval is at least ten times the duration of the last
inspection."""
_DEEPEST, _MOST_ENTRIES = 64, 500_000
_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ ([0-9a-f]+:[0-9a-f]+) (\d+)\s*(.*)")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_UNLINKED = ("/memfd:", "/dev/zero (deleted)", "/SYSV")
"""The kernel's names for shared memory that is in no mounted file system."""

Object = tuple[int, int]
"""The device and the inode of a file."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a sandbox. If a limit is exceeded, the sandbox is terminated."""

    seconds: float
    processes: int = 512
    output: int = 1 << 20
    """The bytes of output that are kept. More output is dropped, and 64 times as much ends the sandbox."""
    memory: int = 0
    """The bytes of memory of all processes together, including shared memory and files in memory. 0 means no limit."""
    file: int = 0
    """The size in bytes of the largest file that can be written. 0 means no limit."""
    written: int = 0
    """The total size in bytes of all files in the writable folders. 0 means no limit."""


def available_memory() -> int:
    """Return the bytes of memory and swap that this machine can still give to programs."""
    found = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return sum(int(found[name].split()[0]) for name in ("MemAvailable", "SwapFree")) << 10


class Watch:
    """Monitors whether a process and its descendants stay within their limits."""

    def __init__(self, limits: Limits, pid: int, log: Path, written: Sequence[Path], group: Group | None) -> None:
        self.limits, self.pid, self.log, self.written, self.group = limits, pid, log, written, group
        self.started = time.monotonic()
        self.next = self.started + _LOOK
        self.others = _all_threads()

    def exceeded(self) -> str:
        """Return a description of the limit that was exceeded, or an empty string if no limit was exceeded. This
        method is fast enough to be called many times a second."""
        limits, now = self.limits, time.monotonic()
        if now - self.started > limits.seconds:
            return _("the program was still running after {seconds:.0f} s").format(seconds=limits.seconds)
        if self.log.stat().st_size > 64 * limits.output:
            return _("the program printed more than {value} MiB").format(value=64 * limits.output >> 20)
        # The machine's number of threads shows a fork bomb before there are too many processes to inspect.
        if now < self.next and _all_threads() - self.others < limits.processes:
            return ""
        inside = descendants(self.pid)
        found = self._used(inside)
        ended = time.monotonic()
        self.next = ended + max(_LOOK, 10 * (ended - now))
        self.others = max(_all_threads() - len(inside), 0)
        return found

    def refused(self) -> str:
        """Return a description of the memory limit if the kernel has enforced it, otherwise an empty string."""
        if self.group is not None and self.group.refused():
            return _("the program used more than {memory} MiB of memory").format(memory=self.limits.memory >> 20)
        return ""

    def _used(self, inside: Sequence[int]) -> str:
        limits = self.limits
        if len(inside) > limits.processes:
            return _("the program had {count} processes at once, although only {processes} are allowed").format(
                count=len(inside), processes=limits.processes
            )
        if found := self.refused():
            return found
        if limits.memory and memory_of(inside, limits.memory) > limits.memory:
            return _("the program used more than {memory} MiB of memory").format(memory=limits.memory >> 20)
        if limits.written:
            return next(filter(None, (_too_much_in(folder, limits.written) for folder in self.written)), "")
        return ""


def _all_threads() -> int:
    """Return the number of threads of the whole machine."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])


# Memory.


def memory_of(processes: Sequence[int], enough: int) -> int:
    """Return the bytes of memory of all processes together. The exact number is computed only if a fast estimate is
    above `enough`; otherwise the result may be too large."""
    files = _files(processes)
    unmapped = _memory_files(processes)
    apart = sum(files.values()) + sum(unmapped.values())
    # This counts shared memory for each process: it is fast, and never too small.
    if (most := apart + sum(map(_resident, processes))) <= enough:
        return most
    counted = {inode for _unused, inode in unmapped}
    return apart + sum(sum(_mapped(process, set(files), counted)) for process in processes)


def _resident(process: int) -> int:
    """Return the bytes that a process has in memory and swap. Files on disk are not counted."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(errors="replace").splitlines()
    except OSError:
        return 0  # the process has ended
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:", "VmSwap:"))) << 10


def _mapped(process: int, devices: set[int], counted: set[int]) -> Iterator[int]:
    """Yield the bytes of each mapping of a process, with its part of shared memory. Mappings that are already counted
    elsewhere are left out."""
    try:
        lines = Path(f"/proc/{process}/smaps").read_text(errors="replace").splitlines()
    except OSError:
        yield _resident(process)  # it has ended, or hides its mappings: this sum is not smaller
        return
    elsewhere, of_file = False, False
    own = part = 0
    for line in lines:
        if found := _MAPPING.match(line):
            device, inode, name = found[1], int(found[2]), found[3]
            unlinked = name.startswith(_UNLINKED)
            elsewhere = inode in counted if unlinked else _device(device) in devices
            of_file = bool(inode) and not unlinked
        elif line.startswith("Pss:"):
            part = int(line.split()[1])
        elif line.startswith("Anonymous:"):
            own = int(line.split()[1])
        elif line.startswith("SwapPss:") and not elsewhere:
            yield ((min(part, own) if of_file else part) + int(line.split()[1])) << 10


def _device(text: str) -> int:
    major, minor = (int(part, 16) for part in text.split(":"))
    return os.makedev(major, minor)


def _files(processes: Iterable[int]) -> Mapping[int, int]:
    """Return the bytes of each in-memory file system, by device. Only file systems that the processes have and this
    process does not have are counted."""
    mine = {line.split()[2] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    found: dict[int, int] = {}
    seen: set[str] = set()
    for process in processes:
        try:
            space = os.readlink(f"/proc/{process}/ns/mnt")
            if space in seen:
                continue
            lines = Path(f"/proc/{process}/mountinfo").read_text().splitlines()
        except OSError:
            continue  # the process has ended
        seen.add(space)
        for line in lines:
            words = line.split()
            if " - tmpfs " in line and words[2] not in mine:
                found |= _filesystem(f"/proc/{process}/root{words[4]}", words[2])
    return found


def _filesystem(place: str, device: str) -> dict[int, int]:
    """Return the bytes of the file system at `place` if it is still on `device`. Mounts move while a sandbox is being
    created."""
    try:
        opened = os.open(place, os.O_PATH)
    except OSError:
        return {}
    try:
        found, size = os.fstat(opened).st_dev, os.fstatvfs(opened)
        same = f"{os.major(found)}:{os.minor(found)}" == device
        return {found: (size.f_blocks - size.f_bfree) * size.f_frsize} if same else {}
    finally:
        os.close(opened)


def _memory_files(processes: Iterable[int]) -> Mapping[Object, int]:
    """Return the bytes of each memory file that a process has open, whether it is mapped or not."""
    found: dict[Object, int] = {}
    for process in processes:
        try:
            names = os.listdir(f"/proc/{process}/fd")
        except OSError:
            continue  # the process has ended
        for name in names:
            place = f"/proc/{process}/fd/{name}"
            # A file that has been closed must not hide the others.
            with contextlib.suppress(OSError):
                if os.readlink(place).startswith("/memfd:"):
                    state = os.stat(place)
                    found[state.st_dev, state.st_ino] = state.st_blocks * 512
    return found


# Files.


@dataclass(slots=True)
class _Counted:
    size: int = 0
    entries: int = 0
    linked: set[Object] = field(default_factory=set)
    """Files with several hard links, which are counted once."""


def _too_much_in(folder: Path, most: int) -> str:
    """Describe the limit that the files in a folder exceed. Return an empty string if no limit is exceeded. Links are
    not followed."""
    counted = _Counted()
    try:
        _count(os.open(folder, _FOLDER), counted, most, 0)
    except OverflowError as error:
        return str(error)
    return ""


def _count(opened: int, counted: _Counted, most: int, depth: int) -> None:
    """Count the files below an open folder, and then close it. Raise OverflowError as soon as a limit is exceeded."""
    try:
        names = os.listdir(opened)
        counted.entries += len(names)
        if counted.entries > _MOST_ENTRIES or depth > _DEEPEST:
            raise OverflowError(
                _(
                    "the program wrote more than {most_entries} files, or created folders more than {deepest} "
                    "levels deep"
                ).format(most_entries=_MOST_ENTRIES, deepest=_DEEPEST)
            )
        for name in names:
            try:
                state = os.stat(name, dir_fd=opened, follow_symlinks=False)
                below = os.open(name, _FOLDER, dir_fd=opened) if stat.S_ISDIR(state.st_mode) else None
            except OSError:
                continue  # it has been removed
            if (state.st_dev, state.st_ino) not in counted.linked:
                counted.size += state.st_blocks * 512
            if state.st_nlink > 1:
                counted.linked.add((state.st_dev, state.st_ino))
            if below is not None:
                _count(below, counted, most, depth + 1)
        if counted.size > most:
            raise OverflowError(_("the program wrote more than {most} MiB of files").format(most=most >> 20))
    finally:
        os.close(opened)
