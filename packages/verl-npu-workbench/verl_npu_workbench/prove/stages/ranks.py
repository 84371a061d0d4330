"""The ranks of a stage: processes that start together, find each other through a folder, and write one result each.

Run as a program, this module is one rank: MODULE FUNCTION RANK SIZE FOLDER, and further arguments for the function.
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
    """One rank of a group. A rank joins the other ranks, and writes its result into the group's folder."""

    number: int
    size: int
    folder: Path

    def join(self, seconds: float) -> Any:
        """Select the rank's NPU, join the HCCL process group of all ranks, and return torch.distributed."""
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
        """Write the rank's result. It replaces an earlier result."""
        put(self.folder / f"rank{self.number}.json", json.dumps(facts).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a rank's process exited, and the result that it wrote."""

    status: int | None
    """The rank's exit status. None if the rank did not end by itself and was ended."""
    facts: Mapping[str, object]
    last: str
    """The last line of the rank's output."""

    @property
    def how(self) -> str:
        """A description of how the rank's process exited."""
        if self.status is None:
            return "had not ended"
        if self.status < 0:
            return f"was ended by {signal.Signals(-self.status).name}"
        return f"ended with status {self.status}" + (f": {self.last}" if self.status else "")


def started(
    setup: Setup, name: str, size: int, called: tuple[str, str], seconds: float, words: Sequence[str] = ()
) -> list[Ended]:
    """Start the ranks of a group, wait for all of them, and return how each rank exited.

    Args:
        setup: the stage's setup.
        name: the name of the folder that the ranks use to find each other.
        size: the number of ranks.
        called: a module of this package, and the function in the module that each rank calls.
        seconds: the time limit.
        words: additional arguments for the function.
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
        Ended(status=status, facts=_facts(folder, number), last=(rank.last_lines(1) or ("no output",))[-1])
        for number, (rank, status) in enumerate(zip(ranks, statuses, strict=True))
    ]


def all_well(ended: Sequence[Ended]) -> Mapping[str, object]:
    """Return the result of rank 0. Raises Wrong if any rank failed."""
    wrong = [f"rank {number} {each.how}" for number, each in enumerate(ended) if each.status != 0]
    if wrong:
        raise Wrong("; ".join(wrong), "status 0 from all ranks")
    return ended[0].facts


def _facts(folder: Path, number: int) -> Mapping[str, object]:
    path = folder / f"rank{number}.json"
    return Answer.read(path.read_bytes()).content if path.is_file() else {}


def main() -> None:
    """Run one rank."""
    module, function, number, size, folder, *words = sys.argv[1:]
    rank = Rank(number=int(number), size=int(size), folder=Path(folder))
    getattr(importlib.import_module(f"{__package__}.{module}"), function)(rank, *words)


if __name__ == "__main__":
    main()
