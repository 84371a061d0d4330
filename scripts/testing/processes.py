"""Whether processes that tests know by their ids have ended."""

from __future__ import annotations

import time
from pathlib import Path


def runs(pid: int) -> bool:
    """Tell whether a process is there, and not only its status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def gone(pid: int, within: float = 1) -> bool:
    """Tell whether a process is gone within some seconds: the system takes a moment to end it."""
    until = time.monotonic() + within
    while runs(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not runs(pid)
