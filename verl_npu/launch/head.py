"""The head: it starts Ray, waits for the others, runs the job, and tells everybody how it ended."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import ports
from ..doctor.cluster import differences, read
from ..doctor.finding import Finding, Verdict
from ..errors import LaunchError
from ..family import Family
from ..interruption import Interrupted, Interruptions
from . import job, over_ssh, roll
from .board import Board, End, Member, NoAnswer, Opening
from .preparation import Prepared
from .ray_node import Node
from .ray_start import PATIENT, PORTS, head_command

__all__ = ["run"]

_UP = 180.0
"""Seconds for Ray's control service on this host."""
_EVERY = 15.0
"""Seconds between two lines about who is missing."""
_LOOK = 0.5
_LAST_WORDS = 5.0
"""Seconds for Ray to end after its control service has."""
_LINES = 8


@dataclass(frozen=True, slots=True)
class _Head:
    """What the steps of the head share."""

    prepared: Prepared
    family: Family
    interruptions: Interruptions
    say: Callable[[str], None]
    board: Board
    ray: Node
    temp: Path
    dashboard: int

    def alive(self) -> None:
        self.ray.check()


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


def _start(prepared: Prepared, family: Family, interruptions: Interruptions, say: Callable[[str], None]) -> _Head:
    request = prepared.request
    temp = request.temp or Path(tempfile.mkdtemp(prefix="verl-npu-", dir="/tmp"))
    chosen = ports.free(PORTS)
    say(f"starting Ray on {prepared.name} ({prepared.address} over {prepared.interface.name}), logs in {temp}")
    ray = Node(family, head_command(prepared, temp, chosen), {**PATIENT, **prepared.environ}, say)

    def pause(seconds: float) -> None:
        ray.check()
        interruptions.pause(seconds)

    board = Board(prepared.address, request.grace, pause)
    return _Head(prepared, family, interruptions, say, board, ray, temp, chosen[0])


def _open(head: _Head, findings: Sequence[Finding]) -> None:
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


def _lead(head: _Head, remote: Sequence[over_ssh.Remote]) -> End:
    request = head.prepared.request
    gathered = _gather(head, remote, patient=request.restarts > 0)
    _compare(head, gathered)
    client = job.connect(head.dashboard, head.alive, head.interruptions)
    for attempt in range(request.restarts + 1):
        ended, lost = _attempt(head, client, attempt, [*gathered.present])
        if not lost or ended.status == 0 or attempt == request.restarts:
            break
        head.say(
            f"restart {attempt + 1} of {request.restarts}, as soon as {head.prepared.party.needed} nodes are there"
        )
        gathered = _gather(head, (), patient=True)
    reason = f"the job ended with status {ended.status}"
    if lost:
        reason = f"lost {', '.join(each.name for each in lost)}; {reason}"
    return End(ended.status, f"{reason}: {ended.reason}" if ended.reason else reason)


def _gather(head: _Head, remote: Sequence[over_ssh.Remote], patient: bool) -> roll.Roll:
    """Wait for enough nodes. A node that is lost before is an error, unless there is patience for its return."""
    party, request = head.prepared.party, head.prepared.request
    start = time.monotonic()
    said, next_line = -1, start + _EVERY
    while True:
        head.alive()
        called = roll.call(head.board)
        count, now = len(called.present), time.monotonic()
        missing = roll.missing(party, called.present) if count < party.needed else []
        who = f"; missing: {', '.join(missing)}" if missing else ""
        if count != said or (count < party.needed and now > next_line):
            there = f"{count} of {party.needed} nodes with {called.npus} NPUs ({', '.join(called.present)})"
            head.say(f"{there}{who}, {now - start:.0f} s of {request.wait:g}")
            said, next_line = count, now + _EVERY
        complete = count >= party.needed and (not party.spare or count >= party.most or now > start + request.grace)
        # Ray may not know yet that a node is gone.
        if complete and not roll.silent(head.board, [*called.present]):
            return called
        _stop_at_refusals(called, patient)
        for each in remote:
            each.check()
        if now - start > request.wait:
            raise LaunchError(
                subject="the nodes of this launch",
                expected=f"{party.needed} within {request.wait:g} s",
                found=f"{count} ({', '.join(called.present)}){who}",
                fix="see what verl-npu launch printed on those that are missing, or raise --wait",
            )
        head.interruptions.pause(_LOOK)


def _stop_at_refusals(called: roll.Roll, patient: bool) -> None:
    for lost in called.gone():
        refused = called.absent[lost.name].state == "refused"
        if refused or not patient:
            raise LaunchError(
                subject=f"the node {lost.name} ({lost.address})",
                expected="to take part",
                found=" | ".join((lost.reason, *lost.lines)),
                fix="mend it, and start again on all nodes",
            )


def _compare(head: _Head, called: roll.Roll) -> None:
    """Say what the doctors found, and in what the nodes differ."""
    counts = {member.name: member.npus for member in called.present.values()}
    if len({*counts.values()}) > 1:
        head.say(
            "WARNING: the nodes have different numbers of NPUs: " + ", ".join(f"{n} {c}" for n, c in counts.items())
        )
    doctors = {
        member.name: read(json.dumps(member.findings), member.name)
        for member in called.present.values()
        if member.findings
    }
    for name, findings in doctors.items():
        warnings = [finding for finding in findings if finding.verdict is Verdict.WARNING]
        if warnings:
            head.say(f"WARNING: the doctor on {name}: " + "; ".join(f"{each.name}: {each.found}" for each in warnings))
    for difference in differences(doctors):
        found = "; ".join(f"{', '.join(where)}: {what}" for what, where in difference.found.items())
        head.say(f"WARNING: the nodes differ in {difference.name}: {found}")


def _attempt(head: _Head, client: job.Client, attempt: int, nodes: Sequence[str]) -> tuple[job.Ended, list[roll.Lost]]:
    """Run the job once. Returns how it ended, and which of its nodes were lost meanwhile."""
    request = head.prepared.request
    name = f"verl-npu-{attempt + 1}"
    log = job.Log(head.temp, name, sys.stdout.buffer)
    job.submit(client, job.entrypoint(request.command, request.folder, head.prepared.environ), name)
    head.say(f"the job has started: {len(nodes)} nodes")
    watched = job.Watched(client, name, request.grace)
    lost: list[roll.Lost] = []
    stop_at: float | None = None
    try:
        while True:
            log.copy()
            head.alive()
            ended = watched.look()
            now = roll.call(head.board).lost(nodes)
            for each in now[len(lost) :] if len(now) > len(lost) else ():
                _mourn(head, each, log)
            lost = now if len(now) > len(lost) else lost
            if ended is not None:
                log.copy()
                if ended.status and not lost:
                    lost = roll.silent(head.board, nodes)
                    for each in lost:
                        _mourn(head, each, log)
                return ended, lost
            if lost and stop_at is None:
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


def _mourn(head: _Head, lost: roll.Lost, log: job.Log) -> None:
    where = f" ({lost.address})" if lost.address else ""
    head.say(f"LOST: the node {lost.name}{where}: {lost.reason}")
    for line in (*lost.lines, *log.lines_of(lost.address, _LINES)):
        head.say(f"  {lost.name}: {line}")


def _last_words(head: _Head) -> str:
    """Return what Ray printed last, if it ends now."""
    ends = time.monotonic() + _LAST_WORDS
    while not head.ray.has_ended() and time.monotonic() < ends:
        time.sleep(_LOOK)
    return " | ".join(head.ray.last_lines())


def _dismiss(head: _Head, end: End) -> None:
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
