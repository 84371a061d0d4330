"""The nodes of a launch come together: it is said who is there, who is missing or out, and how they differ."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

from ..doctor.cluster import differences, read
from ..doctor.finding import Verdict
from ..errors import LaunchError
from . import over_ssh, roll
from .leader import Leader

__all__ = ["compare", "gather"]

_EVERY = 15.0
"""Seconds between two lines about who is missing."""
_LOOK = 0.5


def gather(head: Leader, remote: Sequence[over_ssh.Remote], patient: bool) -> roll.Roll:
    """Wait for enough nodes.

    Raises LaunchError if too few come, or will: one that is lost before the job may come back where there is patience.
    """
    party, request = head.prepared.party, head.prepared.request
    start = time.monotonic()
    said, next_line = -1, start + _EVERY
    out: dict[str, roll.Lost] = {}
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
        out = _without(head, called, patient, out)
        complete = count >= party.needed and (count >= party.most - len(out) or now > start + request.grace)
        # Ray may not know yet that a node is gone.
        if complete and not roll.silent(head.board, [*called.present]):
            return called
        for each in remote:
            each.check()
        if now - start > request.wait:
            raise LaunchError(
                subject="the nodes of this launch",
                expected=f"{party.needed} within {request.wait:g} s",
                found=f"{count} ({', '.join(called.present)}){who}{_said_by(remote, missing)}",
                fix="see what verl-npu launch printed on those that are missing, or raise --wait",
            )
        head.interruptions.pause(_LOOK)


def _said_by(remote: Sequence[over_ssh.Remote], missing: Sequence[str]) -> str:
    """Return the last line that each missing host, started over ssh, has printed."""
    lines = [f"{each.host}: {line}" for each in remote if each.host in missing for line in each.process.last_lines(1)]
    return f" ({'; '.join(lines)})" if lines else ""


def _without(head: Leader, called: roll.Roll, patient: bool, before: Mapping[str, roll.Lost]) -> dict[str, roll.Lost]:
    """Return the nodes that will not take part, of which those are said that are new.

    Raises LaunchError if they are more than the spare ones.
    """
    out = {each.name: each for each in called.gone() if called.absent[each.name].state == "refused" or not patient}
    for name, lost in out.items():
        if name in before:
            continue
        if len(out) > head.prepared.party.spare:
            raise LaunchError(
                subject=f"the node {name} ({lost.address})",
                expected="to take part",
                found=" | ".join((lost.reason, *lost.lines)),
                fix="mend it, and start again on all nodes",
            )
        head.say(f"WARNING: without the node {name} ({lost.address}), as there are spare ones: {lost.reason}")
    return out


def compare(head: Leader, called: roll.Roll) -> None:
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
