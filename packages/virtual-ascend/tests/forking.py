"""Forks a test's spawned processes off one that has imported torch and has not touched an NPU.

Most tests of distributed programs start 2 to 4 processes, each of which would take seconds to import torch.
"""

from __future__ import annotations

import os
import random
import time
from multiprocessing import context, forkserver
from multiprocessing.popen_forkserver import Popen
from typing import Any

IMPORTED = [
    "torch",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.testing._internal.common_distributed",
    "torch.testing._internal.common_fsdp",
    "torch.testing._internal.distributed._tensor.common_dtensor",
]


def install(*modules: str) -> None:
    """From now on, fork this process's spawned processes off one that has also imported `modules`."""
    forkserver.set_forkserver_preload([*IMPORTED[:1], *modules, *IMPORTED[1:]])
    context.SpawnProcess._Popen = staticmethod(_start)  # type: ignore[method-assign, assignment]
    context.SpawnProcess.run = _run  # type: ignore[method-assign]


def _start(process: Any) -> Popen:
    process.environment = dict(os.environ)  # changes since the other process started
    return Popen(process)


def _run(process: Any) -> None:
    os.environ.clear()
    os.environ.update(process.environment)
    random.seed()  # a different seed in each of them
    try:
        context.SpawnProcess.__mro__[1].run(process)
    finally:
        # Tests put a tensor into a queue and end. The process that takes it out asks this one for its memory, and a
        # spawned one takes a while to end.
        time.sleep(1)
