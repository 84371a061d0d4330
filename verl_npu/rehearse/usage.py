"""What a sandbox uses of the machine, as /proc tells it from outside."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

__all__ = ["memory_of", "processes_below"]


def processes_below(pid: int) -> list[int]:
    """Return the processes below `pid`, which are all that a sandbox has."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_text(errors="replace")
            except OSError:
                continue  # it ended meanwhile
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found, left = [], [pid]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def memory_of(processes: Sequence[int]) -> int:
    """Return the bytes that processes have of their own, and that the files of their sandbox take in memory."""
    pages = 0
    for process in processes:
        try:
            _, resident, shared, *_ = Path(f"/proc/{process}/statm").read_text().split()
        except (OSError, ValueError):
            continue  # it ended meanwhile
        pages += int(resident) - int(shared)
    return pages * os.sysconf("SC_PAGE_SIZE") + max(map(_files, processes), default=0)


def _files(process: int) -> int:
    """Bytes in the file systems in memory that a process has, and this one has not."""
    try:
        mine = {line.split()[2] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
        its = {
            (words := line.split())[2]: words[4]
            for line in Path(f"/proc/{process}/mountinfo").read_text().splitlines()
            if " - tmpfs " in line
        }
        found = [
            _filesystem(f"/proc/{process}/root{place}", device) for device, place in its.items() if device not in mine
        ]
    except OSError:
        return 0  # it ended meanwhile
    return sum((each.f_blocks - each.f_bfree) * each.f_frsize for each in found if each is not None)


def _filesystem(place: str, device: str) -> os.statvfs_result | None:
    """What `place` is on, or None if that is not `device`: while a sandbox is made, its mounts still move."""
    opened = os.open(place, os.O_PATH)
    try:
        found = os.fstat(opened).st_dev
        return os.fstatvfs(opened) if f"{os.major(found)}:{os.minor(found)}" == device else None
    finally:
        os.close(opened)
