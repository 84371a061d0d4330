"""In every process of a run: `torch_npu.testing` comes from the checkout, everything else from the virtual Ascend.

Most tests spawn 2 to 4 processes, each of which would take seconds to import torch: they are forked off one process
that has imported it and has not touched an NPU.
"""

from __future__ import annotations

import importlib.util
import os
import random
import sys
import time
from importlib.machinery import ModuleSpec
from multiprocessing import context, forkserver
from multiprocessing.popen_forkserver import Popen
from pathlib import Path
from typing import Any

TESTING = Path(os.environ["TORCH_NPU_TESTING"])


class Testing:
    """Finds what torch_npu's tests import beside torch_npu."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        parts = name.split(".")
        if parts[:2] != ["torch_npu", "testing"] and name != "torch_npu.utils._path_manager":
            return None
        place = TESTING.joinpath(*parts)
        if (place / "__init__.py").is_file():
            return importlib.util.spec_from_file_location(
                name, place / "__init__.py", submodule_search_locations=[str(place)]
            )
        file = place.with_suffix(".py")
        return importlib.util.spec_from_file_location(name, file) if file.is_file() else None


sys.meta_path.insert(0, Testing())  # type: ignore[arg-type]


IMPORTED = [
    "torch",
    "torch_npu",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.testing._internal.common_distributed",
    "torch.testing._internal.common_fsdp",
    "torch.testing._internal.distributed._tensor.common_dtensor",
]


def start(process: Any) -> Popen:
    """Instead of spawning."""
    process.environment = dict(os.environ)  # what this process has changed since the other one started
    return Popen(process)


def run(process: Any) -> None:
    """In the new process."""
    os.environ.clear()
    os.environ.update(process.environment)
    random.seed()  # not the same in all of them
    try:
        context.SpawnProcess.__mro__[1].run(process)
    finally:
        # Tests put a tensor into a queue and end. Who takes it out asks this process for its memory, and a spawned one
        # takes a while to end.
        time.sleep(1)


forkserver.set_forkserver_preload(IMPORTED)
context.SpawnProcess._Popen = staticmethod(start)  # type: ignore[method-assign, assignment]
context.SpawnProcess.run = run  # type: ignore[method-assign]
