"""One run of the job, from its start to its end, and the nodes that are lost meanwhile."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from ..interruption import Interrupted
from . import job, roll
from .leader import Leader

__all__ = ["run_once"]

_LOOK = 0.5
_LINES = 8


def run_once(
    head: Leader, client: job.Client, attempt: int, nodes: Sequence[str]
) -> tuple[job.Ended, list[roll.Lost]]:
    """Run the job once. Returns how it ended, and which of `nodes` were lost meanwhile. Raises Interrupted."""
    request = head.prepared.request
    name = f"verl-npu-{attempt + 1}"
    log = job.Log(head.temp, name, sys.stdout.buffer)
    job.submit(client, job.entrypoint(request.command, request.folder, head.prepared.environ), name)
    head.say(f"the job has started: {len(nodes)} nodes")
    watched = job.Watched(client, name, request.grace)
    losses = _Losses(head, nodes, log)
    stop_at: float | None = None
    try:
        while True:
            log.copy()
            head.alive()
            ended = watched.look()
            losses.look()
            if ended is not None:
                log.copy()
                if ended.status and not losses.lost:
                    losses.add(roll.silent(head.board, nodes), runs=False)
                return ended, [*losses.lost.values()]
            if losses.matter and stop_at is None:
                stop_at = time.monotonic() + request.grace
            if stop_at is not None and time.monotonic() > stop_at:
                head.say(f"the job has not ended within {request.grace:g} s of the loss, and is stopped")
                watched.stop()
                stop_at = float("inf")
            head.interruptions.pause(_LOOK)
    except Interrupted:
        watched.stop()
        raise
    finally:
        log.copy()


class _Losses:
    """The nodes that are lost while the job runs, each of which is said once."""

    def __init__(self, head: Leader, nodes: Sequence[str], log: job.Log) -> None:
        self._head = head
        self._log = log
        self._known = dict.fromkeys(nodes)
        """In the order in which they came; spare ones may come while the job runs."""
        self._present = len(nodes)
        self._used: set[str] = set()
        self.lost: dict[str, roll.Lost] = {}

    def look(self) -> None:
        """See who is lost now. Raises NoAnswer."""
        called = roll.call(self._head.board)
        self._known |= dict.fromkeys(called.present)
        self._present = len(called.present)
        self.add(called.lost([*self._known]))
        self._used |= self._head.board.busy()

    @property
    def matter(self) -> bool:
        """Whether the job cannot go on: a node that it used is lost, or too few are left for it to begin."""
        return bool(self.lost) and (
            self._present < self._head.prepared.party.needed or not self._used.isdisjoint(self.lost)
        )

    def add(self, lost: Sequence[roll.Lost], runs: bool = True) -> None:
        """Say which nodes are lost, with what their processes printed last."""
        new = [each for each in lost if each.name not in self.lost]
        self.lost |= {each.name: each for each in new}
        for each in new:
            where = f" ({each.address})" if each.address else ""
            spare = "" if self.matter or not runs else "; the job does not use it, and goes on"
            self._head.say(f"LOST: the node {each.name}{where}: {each.reason}{spare}")
            for line in (*each.lines, *self._log.lines_of(each.address, _LINES)):
                self._head.say(f"  {each.name}: {line}")
