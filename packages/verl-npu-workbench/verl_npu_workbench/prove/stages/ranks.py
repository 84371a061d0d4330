"""Ranks of a stage: processes that are started together, meet in a folder, and leave an answer each.

As a program it is one of them: MODULE FUNCTION RANK SIZE FOLDER, and what else the function reads.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...processes import ProcessTree, Started, own_python
from ...sandbox.answers import Answer
from ..folder import put
from ..record import Wrong
from .setup import Setup

_GRACE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """What one of them is given, and how it meets the others."""

    number: int
    size: int
    folder: Path

    def join(self, seconds: float) -> Any:
        """Take its NPU, and the process group of all over HCCL; return torch.distributed."""
        from datetime import timedelta

        import torch

        from verl_npu.ascend import software

        software.import_torch_npu()
        torch.npu.set_device(self.number)
        torch.distributed.init_process_group(
            "hccl",
            init_method=f"file://{self.folder}/meeting",
            rank=self.number,
            world_size=self.size,
            timeout=timedelta(seconds=seconds),
        )
        return torch.distributed

    def answer(self, **facts: object) -> None:
        """Leave what was found; a later answer takes the place of an earlier one."""
        put(self.folder / f"rank{self.number}.json", json.dumps(facts).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a rank ended, and what it left."""

    status: int | None
    """None if it had to be ended."""
    facts: Mapping[str, object]
    last: str
    """The last line that it printed."""

    @property
    def how(self) -> str:
        """How it ended, in words."""
        if self.status is None:
            return "had not ended"
        if self.status < 0:
            return f"was ended by {signal.Signals(-self.status).name}"
        return f"ended with status {self.status}" + (f": {self.last}" if self.status else "")


def started(
    setup: Setup, name: str, size: int, called: tuple[str, str], seconds: float, words: Sequence[str] = ()
) -> list[Ended]:
    """Start the ranks of a group, wait for all of them for so long, and return how each ended.

    Args:
        name: that of the folder in which they meet.
        called: the module of this package, and the function in it, that each of them calls.
    """
    folder = setup.scratch / name
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.iterdir():
        left.unlink()
    processes = ProcessTree()
    ranks: list[Started] = []
    try:
        for number in range(size):
            command = own_python(*("-m", __name__, *called, str(number), str(size), str(folder)), *words)
            ranks.append(processes.start(command, {"OMP_NUM_THREADS": "1", **os.environ}))
        ends = setup.now() + min(seconds, setup.left)
        while setup.now() < ends and any(rank.process.poll() is None for rank in ranks):
            time.sleep(0.05)
        statuses = [rank.process.poll() for rank in ranks]
    finally:
        processes.end(_GRACE)
    return [
        Ended(status=status, facts=_facts(folder, number), last=(rank.last_lines(1) or ("no word",))[-1])
        for number, (rank, status) in enumerate(zip(ranks, statuses, strict=True))
    ]


def all_well(ended: Sequence[Ended]) -> Mapping[str, object]:
    """Return what rank 0 left. Raises Wrong if a rank did not end well."""
    wrong = [f"rank {number} {each.how}" for number, each in enumerate(ended) if each.status != 0]
    if wrong:
        raise Wrong("; ".join(wrong), "all ranks to end with status 0")
    return ended[0].facts


def _facts(folder: Path, number: int) -> Mapping[str, object]:
    path = folder / f"rank{number}.json"
    return Answer.read(path.read_bytes()).content if path.is_file() else {}


def main() -> None:
    """Be one rank."""
    module, function, number, size, folder, *words = sys.argv[1:]
    rank = Rank(number=int(number), size=int(size), folder=Path(folder))
    getattr(importlib.import_module(f"{__package__}.{module}"), function)(rank, *words)


if __name__ == "__main__":
    main()
