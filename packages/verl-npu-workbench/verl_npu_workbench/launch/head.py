"""The head: it starts Ray, waits for the others, runs the job, sees who is lost, and tells everybody how it ended."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from verl_npu import progress
from verl_npu.errors import LaunchError
from verl_npu.findings import Finding, Severity
from verl_npu.language import gettext as _

from ..doctor.cluster import as_json, differences, read
from ..processes import Interrupted, Interruptions, ProcessTree, answers, free_ports
from . import over_ssh
from .preparation import Prepared
from .ray import PATIENT, PORTS, Ended, Log, RayProcess, RunningJob, connect, entrypoint, head_command, submit
from .store import (
    Announcement,
    End,
    Lost,
    Member,
    Membership,
    NoAnswer,
    Store,
    missing_hosts,
    read_membership,
    unresponsive,
)

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_UP = 180.0
"""Seconds for Ray's control service on this host."""
_LOOK = 0.5
_LAST_WORDS = 5.0
"""Seconds for Ray to end after its control service has."""


def run(
    prepared: Prepared,
    findings: Sequence[Finding],
    processes: ProcessTree,
    interruptions: Interruptions,
    say: Callable[[str], None],
) -> End:
    """Lead the launch, and say how it ended. What was started is left to those processes' end."""
    head = _start(prepared, processes, interruptions, say)
    remote: list[over_ssh.Remote] = []
    try:
        with progress.step(_("starting Ray")):
            _open(head, findings)
        if prepared.request.ssh:
            remote += over_ssh.start(prepared, processes)
        end = _lead(head, remote)
    except Interrupted as interrupted:
        end = End(interrupted.status, f"{interrupted} on the head")
    except LaunchError as error:
        end = End(2, str(error))
    except NoAnswer as silence:
        end = End(1, f"Ray's control service on the head does not answer any more: {silence} {_last_words(head)}")
    _dismiss(head, end)
    return end


def _start(
    prepared: Prepared, processes: ProcessTree, interruptions: Interruptions, say: Callable[[str], None]
) -> Head:
    request = prepared.request
    temp = request.temp or Path(tempfile.mkdtemp(prefix="verl-npu-", dir="/tmp"))
    chosen = free_ports(PORTS)
    say(f"starting Ray on {prepared.name} ({prepared.address} over {prepared.interface.name}), logs in {temp}")
    with progress.step(_("starting Ray")):
        ray = RayProcess(processes, head_command(prepared, temp, chosen), {**PATIENT, **prepared.environ}, say)

    def pause(seconds: float) -> None:
        ray.check()
        interruptions.pause(seconds)

    store = Store(prepared.address, request.grace, pause)
    return Head(prepared, processes, interruptions, say, store, ray, temp, chosen[0])


def _open(head: Head, findings: Sequence[Finding]) -> None:
    prepared = head.prepared
    cluster = prepared.cluster

    def told() -> bool:
        head.alive()
        if not answers(prepared.head, prepared.request.port):
            return False
        try:
            # Ray gives its own node half a minute to come up, so the others do not compete with it before.
            if prepared.name not in {node.name for node in head.store.nodes() if node.alive}:
                return False
            head.store.tell(
                Member(
                    prepared.name,
                    prepared.interface.address,
                    prepared.npus,
                    findings=tuple(as_json(finding) for finding in findings),
                )
            )
            head.store.announce(Announcement(prepared.request.command, cluster.needed, cluster.most))
        except NoAnswer:
            return False
        return True

    if not head.interruptions.until(told, _UP, every=0.3):
        raise LaunchError(
            subject=_("Ray on the head"),
            expected=_("an answer within {limit:g} s").format(limit=_UP),
            found=_("none"),
            fix=_("see gcs_server.out"),
        )


def _lead(head: Head, remote: Sequence[over_ssh.Remote]) -> End:
    request = head.prepared.request
    gathered = gather(head, remote, patient=request.restarts > 0)
    compare(head, gathered)
    with progress.step(_("waiting for Ray's job API")):
        client = connect(head.dashboard, head.alive, head.interruptions)
    for attempt in range(request.restarts + 1):
        ended, lost = run_job(head, client, attempt, [*gathered.present])
        if not lost or ended.status == 0 or attempt == request.restarts:
            break
        head.say(
            f"restart {attempt + 1} of {request.restarts}, as soon as {head.prepared.cluster.needed} nodes are there"
        )
        gathered = gather(head, (), patient=True)
    reason = f"the job ended with status {ended.status}"
    if lost:
        reason = f"lost {', '.join(each.name for each in lost)}; {reason}"
    return End(ended.status, f"{reason}: {ended.reason}" if ended.reason else reason)


def _last_words(head: Head) -> str:
    """Return what Ray printed last, if it ends now."""
    ends = time.monotonic() + _LAST_WORDS
    while not head.ray.has_ended() and time.monotonic() < ends:
        time.sleep(_LOOK)
    return " | ".join(head.ray.last_lines())


def _dismiss(head: Head, end: End) -> None:
    """Tell the others how it ended, and wait until they have left Ray."""
    grace = head.prepared.request.grace
    try:
        head.store.close(end)
        alone = lambda: {node.name for node in head.store.nodes() if node.alive} <= {head.prepared.name}  # noqa: E731
        with progress.step(_("waiting for the other nodes to leave Ray")):
            left = head.interruptions.until(alone, grace, every=0.3)
        if not left:
            head.say(f"some nodes have not left Ray within {grace:g} s")
    except (NoAnswer, Interrupted, LaunchError):
        # Nobody can be told, nobody is to be waited for, or Ray has ended here.
        return


@dataclass(frozen=True, slots=True)
class Head:
    """The head, with what it has started."""

    prepared: Prepared
    processes: ProcessTree
    interruptions: Interruptions
    say: Callable[[str], None]
    store: Store
    ray: RayProcess
    temp: Path
    """Ray's folder."""
    dashboard: int
    """The port of Ray's job API."""

    def alive(self) -> None:
        """Raise LaunchError if Ray has ended here."""
        self.ray.check()


def gather(head: Head, remote: Sequence[over_ssh.Remote], patient: bool) -> Membership:
    """Wait for enough nodes.

    Raises LaunchError if too few come, or will: one that is lost before the job may come back where there is patience.
    """
    with progress.step(_("waiting for nodes")) as waiting:
        return _gather(head, remote, patient, waiting)


def _gather(head: Head, remote: Sequence[over_ssh.Remote], patient: bool, waiting: progress.Step) -> Membership:
    cluster, request = head.prepared.cluster, head.prepared.request
    start = time.monotonic()
    said = ""
    out: dict[str, Lost] = {}
    while True:
        head.alive()
        members = read_membership(head.store)
        count, now = len(members.present), time.monotonic()
        missing = missing_hosts(cluster, members.present) if count < cluster.needed else []
        who = _("; missing: {hosts}").format(hosts=", ".join(missing)) if missing else ""
        there = f"{count} of {cluster.needed} nodes with {members.npus} NPUs ({', '.join(members.present)}){who}"
        if there != said:
            head.say(f"{there}, {now - start:.0f} s of {request.wait:g}")
            said = there
        waiting.detail = _("{count} of {needed}, for {wait:g} s at most").format(
            count=count, needed=cluster.needed, wait=request.wait
        )
        out = _without(head, members, patient, out)
        complete = count >= cluster.needed and (count >= cluster.most - len(out) or now > start + request.grace)
        # Ray may not know yet that a node is gone.
        if complete and not unresponsive(head.store, [*members.present]):
            return members
        for each in remote:
            each.check()
        if now - start > request.wait:
            raise LaunchError(
                subject=_("the nodes of this launch"),
                expected=_("{needed} within {wait:g} s").format(needed=cluster.needed, wait=request.wait),
                found=f"{count} ({', '.join(members.present)})" + who + _said_by(remote, missing),
                fix=_("see what verl-npu launch printed on those that are missing, or raise --wait"),
            )
        head.interruptions.pause(_LOOK)


def _said_by(remote: Sequence[over_ssh.Remote], missing: Sequence[str]) -> str:
    """Return the last line that each missing host, started over ssh, has printed."""
    lines = [f"{each.host}: {line}" for each in remote if each.host in missing for line in each.process.last_lines(1)]
    return f" ({'; '.join(lines)})" if lines else ""


def _without(head: Head, members: Membership, patient: bool, before: Mapping[str, Lost]) -> dict[str, Lost]:
    """Return the nodes that will not take part, of which those are said that are new.

    Raises LaunchError if they are more than the spare ones.
    """
    out = {each.name: each for each in members.gone() if members.absent[each.name].state == "refused" or not patient}
    for name, lost in out.items():
        if name in before:
            continue
        if len(out) > head.prepared.cluster.spare:
            raise LaunchError(
                subject=_("the node {name} ({address})").format(name=name, address=lost.address),
                expected=_("to take part"),
                found=" | ".join((lost.reason, *lost.lines)),
                fix=_("mend it, and start again on all nodes"),
            )
        head.say(f"WARNING: without the node {name} ({lost.address}), as there are spare ones: {lost.reason}")
    return out


def compare(head: Head, members: Membership) -> None:
    """Say what the doctors found, and in what the nodes differ."""
    counts = {member.name: member.npus for member in members.present.values()}
    if len({*counts.values()}) > 1:
        head.say(
            "WARNING: the nodes have different numbers of NPUs: " + ", ".join(f"{n} {c}" for n, c in counts.items())
        )
    doctors = {
        member.name: read(json.dumps(member.findings), member.name)
        for member in members.present.values()
        if member.findings
    }
    for name, findings in doctors.items():
        warnings = [finding for finding in findings if finding.severity is Severity.WARNING]
        if warnings:
            head.say(f"WARNING: the doctor on {name}: " + "; ".join(f"{each.code}: {each.found}" for each in warnings))
    for difference in differences(doctors):
        found = "; ".join(f"{', '.join(where)}: {what}" for what, where in difference.found.items())
        head.say(f"WARNING: the nodes differ in {difference.name}: {found}")


_LINES = 8


def run_job(head: Head, client: JobSubmissionClient, attempt: int, nodes: Sequence[str]) -> tuple[Ended, list[Lost]]:
    """Run the job once. Returns how it ended, and which of `nodes` were lost meanwhile. Raises Interrupted."""
    request = head.prepared.request
    name = f"verl-npu-{attempt + 1}"
    log = Log(head.temp, name, sys.stdout.buffer)
    submit(client, entrypoint(request.command, request.folder, head.prepared.environ), name)
    head.say(f"the job has started: {len(nodes)} nodes")
    watched = RunningJob(client, name, request.grace)
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
                    losses.add(unresponsive(head.store, nodes), runs=False)
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

    def __init__(self, head: Head, nodes: Sequence[str], log: Log) -> None:
        self._head = head
        self._log = log
        self._known = dict.fromkeys(nodes)
        """In the order in which they came; spare ones may come while the job runs."""
        self._present = len(nodes)
        self._used: set[str] = set()
        self.lost: dict[str, Lost] = {}

    def look(self) -> None:
        """See who is lost now. Raises NoAnswer."""
        members = read_membership(self._head.store)
        self._known |= dict.fromkeys(members.present)
        self._present = len(members.present)
        self.add(members.lost([*self._known]))
        self._used |= self._head.store.busy()

    @property
    def matter(self) -> bool:
        """Whether the job cannot go on: a node that it used is lost, or too few are left for it to begin."""
        return bool(self.lost) and (
            self._present < self._head.prepared.cluster.needed or not self._used.isdisjoint(self.lost)
        )

    def add(self, lost: Sequence[Lost], runs: bool = True) -> None:
        """Say which nodes are lost, with what their processes printed last."""
        new = [each for each in lost if each.name not in self.lost]
        self.lost |= {each.name: each for each in new}
        for each in new:
            where = f" ({each.address})" if each.address else ""
            spare = "" if self.matter or not runs else "; the job does not use it, and goes on"
            self._head.say(f"LOST: the node {each.name}{where}: {each.reason}{spare}")
            for line in (*each.lines, *self._log.lines_of(each.address, _LINES)):
                self._head.say(f"  {each.name}: {line}")
