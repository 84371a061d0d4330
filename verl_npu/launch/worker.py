"""Every node but the head: it joins the head's Ray, stays as long as the job does, and ends as the job ends."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from .. import ports
from ..doctor.finding import Finding
from ..errors import LaunchError
from ..family import Family
from ..interruption import Interrupted, Interruptions
from . import meeting
from .board import Board, End, Member, NoAnswer, Opening
from .preparation import Prepared, refusal
from .ray_node import Node
from .ray_start import PORTS, worker_command

__all__ = ["run"]

_EVERY = 15.0
"""Seconds between two lines about the head that has not come."""
_LOOK = 1.0


def run(
    prepared: Prepared,
    findings: Sequence[Finding],
    family: Family,
    interruptions: Interruptions,
    say: Callable[[str], None],
) -> End:
    """Take part, and say how the launch ended. What was started is left to the family's end."""
    board = Board(prepared.address, prepared.request.grace, interruptions.pause)
    _meet(prepared, board, interruptions, say)
    own = Member(
        meeting.free_name(board, prepared.party, prepared.name, prepared.interface.address),
        prepared.interface.address,
        prepared.npus,
        findings=tuple(finding.as_json() for finding in findings),
    )
    refused = refusal([*findings])
    if refused:
        board.tell(replace(own, state="refused", reason=refused, findings=()))
        raise LaunchError(
            subject="this node", expected="no error of the doctor", found=refused, fix="mend it, or say --no-doctor"
        )
    say(f"joining Ray at {prepared.address} as {own.name} ({own.address} over {prepared.interface.name})")
    command = worker_command(replace(prepared, name=own.name), ports.free(PORTS))
    ray = Node(family, command, prepared.environ, say)
    try:
        _come_up(own, board, ray, interruptions)
        board.tell(own)
        return _stay(prepared, board, ray.check, interruptions)
    except Interrupted as interrupted:
        _leave(board, own, f"{interrupted} there", ())
        return End(interrupted.status, str(interrupted))
    except NoAnswer:
        return End(1, f"the head at {prepared.address} has not answered for {prepared.request.grace:g} s")
    except LaunchError as error:
        _leave(board, own, "Ray ended there", ray.last_lines())
        return End(1, str(error))


def _meet(prepared: Prepared, board: Board, interruptions: Interruptions, say: Callable[[str], None]) -> None:
    """Wait for the head, and see that it is the one of this launch."""
    request = prepared.request
    start = time.monotonic()
    said = float("-inf")
    opening: Opening | None = None
    while opening is None:
        now = time.monotonic()
        if now - said > _EVERY:
            say(f"waiting for the head at {prepared.address}, {now - start:.0f} s of {request.wait:g}")
            said = now
        if now - start > request.wait:
            raise LaunchError(
                subject=f"the head {prepared.party.head}",
                expected=f"verl-npu launch at {prepared.address} within {request.wait:g} s",
                found="nobody who answers",
                fix="start it there too, see what it printed, or open the port in the firewall",
            )
        _check_attached(request.attached)
        opening = meeting.opening(board, prepared.head, request.port)
        if opening is None:
            interruptions.pause(_LOOK)
    if opening != Opening(request.command, prepared.party.needed, prepared.party.most):
        raise LaunchError(
            subject=f"the head at {prepared.address}",
            expected=f"a launch of {' '.join(request.command)} on {prepared.party.needed} nodes",
            found=f"one of {' '.join(opening.command)} on {opening.needed} nodes",
            fix="give the same command and numbers on all nodes, or another --port to each launch",
        )


def _come_up(own: Member, board: Board, ray: Node, interruptions: Interruptions) -> None:
    """Wait until Ray has this node, or the launch has ended without it."""
    while board.end() is None and own.name not in {node.name for node in board.nodes() if node.alive}:
        ray.check()
        interruptions.pause(_LOOK)


def _stay(prepared: Prepared, board: Board, alive: Callable[[], None], interruptions: Interruptions) -> End:
    while True:
        end = board.end()
        if end is not None:
            return end
        alive()
        _check_attached(prepared.request.attached)
        interruptions.pause(_LOOK)


def _leave(board: Board, own: Member, reason: str, lines: tuple[str, ...]) -> None:
    try:
        board.tell(replace(own, state="left", reason=reason, lines=lines, findings=()))
    except NoAnswer:
        # The head is gone as well: there is nobody to tell.
        return


def _check_attached(attached: bool) -> None:
    """Raise LaunchError if the host that started this one over ssh is gone."""
    if attached and select.select([sys.stdin], [], [], 0)[0] and not os.read(sys.stdin.fileno(), 1):
        raise LaunchError(
            subject="the connection from the head",
            expected="to stay open until the job has ended",
            found="its end",
            fix="see what the head printed",
        )
