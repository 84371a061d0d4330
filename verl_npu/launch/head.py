"""The head: it starts Ray, waits for the others, runs the job, and tells everybody how it ended."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .. import ports
from ..doctor.finding import Finding
from ..errors import LaunchError
from ..family import Family
from ..interruption import Interrupted, Interruptions
from . import job, over_ssh
from .attempt import run_once
from .board import Board, End, Member, NoAnswer, Opening
from .gathering import compare, gather
from .leader import Leader
from .preparation import Prepared
from .ray_node import Node
from .ray_start import PATIENT, PORTS, head_command

__all__ = ["run"]

_UP = 180.0
"""Seconds for Ray's control service on this host."""
_LOOK = 0.5
_LAST_WORDS = 5.0
"""Seconds for Ray to end after its control service has."""


def run(
    prepared: Prepared,
    findings: Sequence[Finding],
    family: Family,
    interruptions: Interruptions,
    say: Callable[[str], None],
) -> End:
    """Lead the launch, and say how it ended. What was started is left to the family's end."""
    head = _start(prepared, family, interruptions, say)
    remote: list[over_ssh.Remote] = []
    try:
        _open(head, findings)
        if prepared.request.ssh:
            remote += over_ssh.start(prepared, family)
        end = _lead(head, remote)
    except Interrupted as interrupted:
        end = End(interrupted.status, f"{interrupted} on the head")
    except LaunchError as error:
        end = End(2, str(error))
    except NoAnswer as silence:
        end = End(1, f"Ray's control service on the head does not answer any more: {silence} {_last_words(head)}")
    _dismiss(head, end)
    return end


def _start(prepared: Prepared, family: Family, interruptions: Interruptions, say: Callable[[str], None]) -> Leader:
    request = prepared.request
    temp = request.temp or Path(tempfile.mkdtemp(prefix="verl-npu-", dir="/tmp"))
    chosen = ports.free(PORTS)
    say(f"starting Ray on {prepared.name} ({prepared.address} over {prepared.interface.name}), logs in {temp}")
    ray = Node(family, head_command(prepared, temp, chosen), {**PATIENT, **prepared.environ}, say)

    def pause(seconds: float) -> None:
        ray.check()
        interruptions.pause(seconds)

    board = Board(prepared.address, request.grace, pause)
    return Leader(prepared, family, interruptions, say, board, ray, temp, chosen[0])


def _open(head: Leader, findings: Sequence[Finding]) -> None:
    prepared = head.prepared
    party = prepared.party

    def told() -> bool:
        head.alive()
        if not ports.listens(prepared.head, prepared.request.port):
            return False
        try:
            # Ray gives its own node half a minute to come up, so the others do not compete with it before.
            if prepared.name not in {node.name for node in head.board.nodes() if node.alive}:
                return False
            head.board.tell(
                Member(
                    prepared.name,
                    prepared.interface.address,
                    prepared.npus,
                    findings=tuple(finding.as_json() for finding in findings),
                )
            )
            head.board.open(Opening(prepared.request.command, party.needed, party.most))
        except NoAnswer:
            return False
        return True

    if not head.interruptions.until(told, _UP, every=0.3):
        raise LaunchError(
            subject="Ray on the head", expected=f"an answer within {_UP:g} s", found="none", fix="see gcs_server.out"
        )


def _lead(head: Leader, remote: Sequence[over_ssh.Remote]) -> End:
    request = head.prepared.request
    gathered = gather(head, remote, patient=request.restarts > 0)
    compare(head, gathered)
    client = job.connect(head.dashboard, head.alive, head.interruptions)
    for attempt in range(request.restarts + 1):
        ended, lost = run_once(head, client, attempt, [*gathered.present])
        if not lost or ended.status == 0 or attempt == request.restarts:
            break
        head.say(
            f"restart {attempt + 1} of {request.restarts}, as soon as {head.prepared.party.needed} nodes are there"
        )
        gathered = gather(head, (), patient=True)
    reason = f"the job ended with status {ended.status}"
    if lost:
        reason = f"lost {', '.join(each.name for each in lost)}; {reason}"
    return End(ended.status, f"{reason}: {ended.reason}" if ended.reason else reason)


def _last_words(head: Leader) -> str:
    """Return what Ray printed last, if it ends now."""
    ends = time.monotonic() + _LAST_WORDS
    while not head.ray.has_ended() and time.monotonic() < ends:
        time.sleep(_LOOK)
    return " | ".join(head.ray.last_lines())


def _dismiss(head: Leader, end: End) -> None:
    """Tell the others how it ended, and wait until they have left Ray."""
    grace = head.prepared.request.grace
    try:
        head.board.close(end)
        alone = lambda: {node.name for node in head.board.nodes() if node.alive} <= {head.prepared.name}  # noqa: E731
        if not head.interruptions.until(alone, grace, every=0.3):
            head.say(f"some nodes have not left Ray within {grace:g} s")
    except (NoAnswer, Interrupted, LaunchError):
        # Nobody can be told, nobody is to be waited for, or Ray has ended here.
        return
