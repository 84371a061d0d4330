"""What a sandbox may use, and a watch that says when it is over: time, output, processes, memory of all kinds, files.

Where the kernel counts for us (`cgroup`), memory cannot be had beyond the limit. Elsewhere, and beside it, all of it
is added up several times a second: what processes have of their own, each object that they share once, however many
of them map it, memory files that nobody maps (memfd_create(2)), and file systems in memory.
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
"""Seconds between two looks at all processes, and at least ten times what the last one took."""
_DEEPEST, _MOST_ENTRIES = 64, 500_000
_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ ([0-9a-f]+:[0-9a-f]+) (\d+)\s*(.*)")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_UNLINKED = ("/memfd:", "/dev/zero (deleted)", "/SYSV")
"""How the kernel names shared memory that is no file of a mounted file system."""

Object = tuple[int, int]
"""The device and the inode of a file."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a sandbox may use before it is ended."""

    seconds: float
    processes: int = 512
    output: int = 1 << 20
    """Bytes of output that are kept; more is dropped, and 64 times as many end it."""
    memory: int = 0
    """Bytes that its processes may have together, with all that they share and write to files in memory; 0: any."""
    file: int = 0
    """Bytes of the largest file that it may write; 0: any."""
    written: int = 0
    """Bytes of all that it may leave in the folders that it writes to; 0: any."""


def available_memory() -> int:
    """Return the bytes that this machine can still give to programs: more than that never worked."""
    found = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return sum(int(found[name].split()[0]) for name in ("MemAvailable", "SwapFree")) << 10


class Watch:
    """Looks whether what a process has started keeps within its limits."""

    def __init__(self, limits: Limits, pid: int, log: Path, written: Sequence[Path], group: Group | None) -> None:
        self.limits, self.pid, self.log, self.written, self.group = limits, pid, log, written, group
        self.started = time.monotonic()
        self.next = self.started + _LOOK
        self.others = _all_threads()

    def exceeded(self) -> str:
        """Return the limit that it is over, in words; empty if none. Called many times a second, it costs little."""
        limits, now = self.limits, time.monotonic()
        if now - self.started > limits.seconds:
            return _("it was still running after {seconds:.0f} s").format(seconds=limits.seconds)
        if self.log.stat().st_size > 64 * limits.output:
            return _("it printed more than {value} MiB").format(value=64 * limits.output >> 20)
        # Processes that double are seen by the number of all, before there are too many to be looked at.
        if now < self.next and _all_threads() - self.others < limits.processes:
            return ""
        inside = descendants(self.pid)
        found = self._used(inside)
        ended = time.monotonic()
        self.next = ended + max(_LOOK, 10 * (ended - now))
        self.others = max(_all_threads() - len(inside), 0)
        return found

    def refused(self) -> str:
        """Return that the kernel has refused it memory, in words; empty if it has not."""
        if self.group is not None and self.group.refused():
            return _("it took more than {memory} MiB of memory").format(memory=self.limits.memory >> 20)
        return ""

    def _used(self, inside: Sequence[int]) -> str:
        limits = self.limits
        if len(inside) > limits.processes:
            return _("it had {count} processes at once, and {processes} are allowed").format(
                count=len(inside), processes=limits.processes
            )
        if found := self.refused():
            return found
        if limits.memory and memory_of(inside, limits.memory) > limits.memory:
            return _("it took more than {memory} MiB of memory").format(memory=limits.memory >> 20)
        if limits.written:
            return next(filter(None, (_too_much_in(folder, limits.written) for folder in self.written)), "")
        return ""


def _all_threads() -> int:
    """Threads of the whole machine."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])


# Memory.


def memory_of(processes: Sequence[int], enough: int) -> int:
    """Return the bytes of memory that processes have together; what is not above `enough` may be counted twice."""
    files = _files(processes)
    unmapped = _memory_files(processes)
    apart = sum(files.values()) + sum(unmapped.values())
    # Counted for each process that maps it: quickly found, and never too little.
    if (most := apart + sum(map(_resident, processes))) <= enough:
        return most
    counted = {inode for _unused, inode in unmapped}
    return apart + sum(sum(_mapped(process, set(files), counted)) for process in processes)


def _resident(process: int) -> int:
    """Bytes that a process has in memory or swapped out, but for those of files on disk."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(errors="replace").splitlines()
    except OSError:
        return 0  # it ended meanwhile
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:", "VmSwap:"))) << 10


def _mapped(process: int, devices: set[int], counted: set[int]) -> Iterator[int]:
    """Yield the bytes of each mapping of a process, its part of what it shares; without what is counted elsewhere."""
    try:
        lines = Path(f"/proc/{process}/smaps").read_text(errors="replace").splitlines()
    except OSError:
        yield _resident(process)  # it ended meanwhile, or hides them: its own sum is not less
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
    """Bytes in each file system in memory that one of the processes has, and this one has not, by device."""
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
            continue  # it ended meanwhile
        seen.add(space)
        for line in lines:
            words = line.split()
            if " - tmpfs " in line and words[2] not in mine:
                found |= _filesystem(f"/proc/{process}/root{words[4]}", words[2])
    return found


def _filesystem(place: str, device: str) -> dict[int, int]:
    """The bytes of the file system that `place` is on, if it is `device`: while a sandbox is made, its mounts move."""
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
    """Bytes of each memory file that a process has open, mapped or not."""
    found: dict[Object, int] = {}
    for process in processes:
        try:
            names = os.listdir(f"/proc/{process}/fd")
        except OSError:
            continue  # it ended meanwhile
        for name in names:
            place = f"/proc/{process}/fd/{name}"
            # One that was closed meanwhile hides none of the others.
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
    """Files with several names, which are counted once."""


def _too_much_in(folder: Path, most: int) -> str:
    """Return what of a folder is too much, in words; empty if nothing is. No link is followed."""
    counted = _Counted()
    try:
        _count(os.open(folder, _FOLDER), counted, most, 0)
    except OverflowError as error:
        return str(error)
    return ""


def _count(opened: int, counted: _Counted, most: int, depth: int) -> None:
    """Add what is in a folder; raises OverflowError as soon as it is too much. It closes the folder."""
    try:
        names = os.listdir(opened)
        counted.entries += len(names)
        if counted.entries > _MOST_ENTRIES or depth > _DEEPEST:
            raise OverflowError(
                _("it wrote more than {most_entries} files, or folders more than {deepest} deep").format(
                    most_entries=_MOST_ENTRIES, deepest=_DEEPEST
                )
            )
        for name in names:
            try:
                state = os.stat(name, dir_fd=opened, follow_symlinks=False)
                below = os.open(name, _FOLDER, dir_fd=opened) if stat.S_ISDIR(state.st_mode) else None
            except OSError:
                continue  # it was removed meanwhile
            if (state.st_dev, state.st_ino) not in counted.linked:
                counted.size += state.st_blocks * 512
            if state.st_nlink > 1:
                counted.linked.add((state.st_dev, state.st_ino))
            if below is not None:
                _count(below, counted, most, depth + 1)
        if counted.size > most:
            raise OverflowError(_("it wrote more than {most} MiB of files").format(most=most >> 20))
    finally:
        os.close(opened)
