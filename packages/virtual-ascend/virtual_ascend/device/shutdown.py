"""Waits for torch's threads before the interpreter exits.

If a thread requests the GIL while the interpreter is exiting, the process crashes ("terminate called without an active
exception"). Autograd has a thread for each NPU, started by the first backward pass. This thread takes the GIL when it
starts, and again after each backward pass. gloo's threads take the GIL if they are the last to release a tensor.
Therefore, a program waits before it exits until these threads are idle.
"""

from __future__ import annotations

import atexit
import os
import time
from pathlib import Path

PATIENCE = 2.0  # seconds; a thread that is busy for longer is not about to sleep
PAUSE = 0.001

_TASKS = Path("/proc/self/task")


def install() -> None:
    """Make this process wait for torch's threads before it exits."""
    process = os.getpid()
    atexit.register(lambda: settle() if os.getpid() == process else None)  # a forked child does not have these threads


def settle() -> None:
    """Wait until all of torch's threads are idle. The GIL is not held while waiting."""
    end = time.monotonic() + PATIENCE
    quiet = 0
    while len(os.listdir(_TASKS)) > 1 and quiet < 2 and time.monotonic() < end:
        time.sleep(PAUSE)
        # The sleep released the GIL, so a thread that waited for it runs by now.
        quiet = 0 if _busy() else quiet + 1


def _busy() -> bool:
    own = str(os.getpid())
    name = (_TASKS / own / "comm").read_text()
    for task in os.listdir(_TASKS):
        try:
            # torch names its threads pt_...; until then they have the process's name.
            called = (_TASKS / task / "comm").read_text()
            state = (_TASKS / task / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue  # it has ended
        if task != own and state == "R" and (called == name or called.startswith("pt_")):
            return True
    return False
