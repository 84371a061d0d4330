"""What the machine grants a process: shared memory and open files."""

from __future__ import annotations

from collections.abc import Iterator

from .finding import Finding, ok, skipped, warning
from .site import Site

__all__ = ["judge_open_files", "judge_shared_memory"]

_LEAST_SHARED = 2 << 30
"""In bytes. Docker's default is 64 MiB; Ray puts its objects, and verl the weights of a bucket, there."""
_LEAST_FILES = 4096
"""Ray's own documents ask for 65536 on large clusters, and its processes end with `Too many open files` at 1024."""


def judge_shared_memory(site: Site) -> Iterator[Finding]:
    """Whether /dev/shm is large enough for Ray's objects and for weights that are handed over in it."""
    size = site.shared_memory
    if size is None:
        yield skipped("shared-memory", "there is no /dev/shm")
    elif size >= _LEAST_SHARED:
        yield ok("shared-memory", f"{size / (1 << 30):.0f} GiB")
    else:
        yield warning(
            "shared-memory",
            f"{size >> 20} MiB in /dev/shm",
            needed=f"at least {_LEAST_SHARED >> 30} GiB",
            why="Ray keeps its objects there, and verl hands weights to the rollout engine in it: `Bus error` if full",
            fix="docker run --ipc=host …  # outside of a container: mount -o remount,size=64g /dev/shm",
        )


def judge_open_files(site: Site) -> Iterator[Finding]:
    """Whether a process may have as many files and sockets open as Ray needs."""
    if site.open_files >= _LEAST_FILES:
        yield ok("open-files", str(site.open_files) if site.open_files < 1 << 62 else "unlimited")
    else:
        yield warning(
            "open-files",
            str(site.open_files),
            needed=f"at least {_LEAST_FILES}; 65536 on a cluster",
            why="each of Ray's workers has a socket to every other: `Too many open files`",
            fix="ulimit -n 65536  # in the shell that runs `ray start`",
        )
