"""Checks whether processes have ended, by their ids."""

from __future__ import annotations

import time
from pathlib import Path


def runs(pid: int) -> bool:
    """Return whether a process runs, and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def gone(pid: int, within: float = 1) -> bool:
    """Return whether a process ends within some seconds."""
    until = time.monotonic() + within
    while runs(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not runs(pid)
