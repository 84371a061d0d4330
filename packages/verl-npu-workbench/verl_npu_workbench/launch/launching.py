"""A launch on this host: `ray start` and the job. The hosts coordinate through a rendezvous (see `meeting`), because
Ray itself offers no such mechanism."""

from __future__ import annotations

import json
import shlex
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from verl_npu import progress
from verl_npu.errors import LaunchError, VerlNpuError
from verl_npu.language import gettext as _

from ..processes import ProcessTree, Started, captured, own_python
from .host import Host
from .meeting import Connection, Meeting, Member, join
from .network import here, refused, resolve

Say = Callable[[str], None]
GRACE = 60.0
"""The seconds that a job gets to end by itself after a host was lost. Ray and verl may need half of them to notice the
loss."""
_ENDING = 10.0
_TOLD = 120.0
"""The time limit, in seconds, for a host that cannot take part to report this: to the head or, if this host is the
head, to the other hosts."""
_LOOK = 0.2


def launch(host: Host, say: Say) -> int:
    """Take part in a launch, and return its exit status. Before returning, terminate all processes that the launch
    started on this host.

    Raises LaunchError if the job is not started.
    """
    if not host.is_head and not host.address:
        # This host cannot reach the head, because there is no such name or no route.
        raise host.refusals[0]
    plan, trouble = f"{shlex.join(host.request.command)} on {host.nodes}", _trouble(host)
    own = Member(socket.gethostname(), host.address, host.npus, plan, trouble=trouble)
    status, reason = _lead(host, own, say) if host.is_head else _follow(host, own, say)
    say(f"{'done' if status == 0 else 'FAILED'}: {reason}")
    return status


def _trouble(host: Host) -> str:
    """Return the reason why this host cannot take part: its refusals, or the errors that the doctor found. Return an
    empty string if the host can take part."""
    if host.refusals or not host.request.doctor:
        return "; ".join(map(str, host.refusals))
    with progress.step(_("checking this machine with the doctor")):
        command = own_python("-m", "verl_npu", "doctor", "--json")
        done = captured(command, env=dict(host.environ))
    try:
        errors = [each for each in json.loads(done.stdout) if each["verdict"] == "error"]
    except (ValueError, TypeError, KeyError):
        return (
            f"verl-npu doctor gave no result: {f'{done.stdout}{done.stderr}'.strip()[-500:] or 'it printed nothing'}"
        )
    return "; ".join(f"{each['name']}: {each['found']} (needed: {each['needed']}; {each['fix']})" for each in errors)


def _lead(host: Host, own: Member, say: Say) -> tuple[int, str]:
    port = host.request.port + 1
    if own.trouble:
        _turn_away(host, own, say)
        if host.refusals:
            raise host.refusals[0]
        raise refused(
            _("the head"), _("a host that can take part"), own.trouble, _("fix this problem, or add --no-doctor")
        )
    try:
        meeting = Meeting(port, own, host.nodes)
    except OSError as error:
        fix = _("specify another --port on all nodes")
        raise refused(_("port {port}").format(port=port), _("a free port"), str(error.strerror), fix) from error
    processes = ProcessTree()
    try:
        _gather(host, meeting, say)
        status, reason = _run(host, meeting, processes, say)
        meeting.end(status, reason)
        return status, reason
    except (VerlNpuError, KeyboardInterrupt) as error:
        meeting.end(getattr(error, "status", 2), f"on the head: {error}")
        raise
    finally:
        _end(host, processes)


def _end(host: Host, processes: ProcessTree) -> None:
    """End the processes that were started on this host. Also remove the file with the cluster's address, because later
    jobs would otherwise try to join this cluster."""
    processes.end(_ENDING)
    ours = [f"{address}:{host.request.port}" for address in (host.head, *here().values())]
    usual = Path(host.environ.get("RAY_TMPDIR") or host.environ.get("TMPDIR") or "/tmp", "ray")
    asked = [Path(each.partition("=")[2]) for each in host.request.ray if each.startswith("--temp-dir=")]
    for noted in (folder / "ray_current_cluster" for folder in (usual, *asked)):
        with suppress(OSError):
            if noted.read_text().strip() in ours:
                noted.unlink()


def _turn_away(host: Host, own: Member, say: Say) -> None:
    """Tell each host that connects why the head cannot take part."""
    if host.nodes == 1:
        return
    say(f"{own.trouble}; telling the other nodes; Ctrl-C ends this")
    with suppress(OSError), progress.step(_("waiting for nodes")):
        meeting, told = Meeting(host.request.port + 1, own, host.nodes), 0
        ends = time.monotonic() + min(host.request.wait, _TOLD)
        while told < host.nodes - 1 and time.monotonic() < ends:
            told += len(meeting.look())
            time.sleep(_LOOK)
        meeting.end(2, own.trouble)


def _gather(host: Host, meeting: Meeting, say: Say) -> None:
    """Wait for all hosts. Raises LaunchError if a host cannot take part or does not arrive in time."""
    ends, said = time.monotonic() + host.request.wait, ""
    nodes = "1 node is" if host.nodes == 1 else f"{host.nodes} nodes are"
    with progress.step(_("waiting for nodes")) as waiting:
        while len(meeting.members) < host.nodes or not said:
            for member in meeting.look():
                raise _lost(member)
            addresses = [member.address for member in meeting.members]
            missing = [each for each in host.request.hosts if _address(each) not in addresses]
            there = f"{len(addresses)} of {nodes} there: {', '.join(map(str, meeting.members))}"
            there += f"; missing: {', '.join(missing)}" if missing else ""
            if there != said:
                say(there)
                said = waiting.detail = there
            if time.monotonic() > ends:
                fix = _("read the output of verl-npu launch on the missing nodes, or raise --wait")
                raise refused(_("the nodes of this launch"), _("an answer from every node"), there, fix)
            time.sleep(_LOOK)


def _address(host: str) -> str:
    with suppress(LaunchError):
        return resolve(host)
    return ""


def _lost(member: Member) -> LaunchError:
    subject = _("the node {node}").format(node=member)
    return refused(
        subject, _("a host that can take part"), member.trouble, _("fix this problem, and start again on all nodes")
    )


def _run(host: Host, meeting: Meeting, processes: ProcessTree, say: Say) -> tuple[int, str]:
    """Run the job. Return its exit status, and a sentence about how the job ended. Raises LaunchError if the job is
    not started."""
    with progress.step(_("starting Ray")):
        ray = processes.start(host.ray(), host.environ)
        _await(lambda: ray.process.poll() is not None, meeting)
        if ray.process.returncode:
            found, fix = (
                " | ".join(ray.last_lines(8)) or _("no output"),
                _("fix this problem, and start again on all nodes"),
            )
            raise refused(_("Ray on the head"), _("a successful start"), found, fix)
        meeting.start()
        _await(lambda: all(member.ready for member in meeting.members[1:]), meeting)
    sys.stdout.flush()
    job = processes.start(["env", *host.request.command], host.environ, sys.stdout.buffer, stderr=sys.stderr.fileno())
    say(f"the job has started: {host.nodes} node{'' if host.nodes == 1 else 's'}")
    lost, stop_at = "", float("inf")
    while (status := job.process.poll()) is None and time.monotonic() < stop_at:
        processes.reap()
        for member in meeting.look():
            say(f"LOST: the node {member}: {member.trouble}; the job has {GRACE:g} s to end")
            lost += f"; lost {member}"
            stop_at = min(stop_at, time.monotonic() + GRACE)
        time.sleep(_LOOK)
    ended = 1 if status is None else 128 - status if status < 0 else status
    return ended, f"the job {'was stopped' if status is None else f'ended with status {ended}'}{lost}"


def _await(done: Callable[[], bool], meeting: Meeting) -> None:
    """Wait until `done()` returns true. Raises LaunchError if a host drops out."""
    while not done():
        for member in meeting.look():
            raise _lost(member)
        time.sleep(_LOOK)


def _follow(host: Host, own: Member, say: Say) -> tuple[int, str]:
    head, port, wait = f"{host.head}:{host.request.port}", host.request.port + 1, host.request.wait
    if own.trouble:
        say(f"{own.trouble}; telling the head {head}; Ctrl-C ends this")
    with progress.step(_("waiting for the head")):
        connection = join(host.head, port, own, min(wait, _TOLD) if own.trouble else wait)
    if own.trouble:
        return 2, own.trouble
    if connection is None:
        expected = _("verl-npu launch at {address} within {wait:g} s").format(address=head, wait=wait)
        fix = _("start verl-npu launch on the head, read its output there, or open its ports in the firewall")
        raise refused(_("the head"), expected, _("no answer"), fix)
    say(f"{own} waits for the other nodes; the head is {head}")
    processes = ProcessTree()
    try:
        return _stay(host, connection, processes)
    except KeyboardInterrupt as error:
        connection.say(trouble=f"{error} there")
        raise
    finally:
        connection.close()
        _end(host, processes)


def _stay(host: Host, connection: Connection, processes: ProcessTree) -> tuple[int, str]:
    """Run Ray on this host until the head ends the launch. Return the exit status, and a sentence about how the launch
    ended."""
    ray: Started | None = None
    while True:
        try:
            message = connection.hear()
        except (OSError, ValueError) as error:
            return 1, f"the head stopped answering: {error}"
        if "status" in message:
            return int(message["status"]), str(message["reason"])
        if "start" in message:
            ray = processes.start(host.ray(), host.environ)
        if ray is not None and (status := ray.process.poll()) is not None:
            reason = f"Ray did not start: {' | '.join(ray.last_lines(8))}" if status else ""
            connection.say(trouble=reason, ready=not status)
            if status:
                return 2, reason
            ray = None
        processes.reap()
        time.sleep(_LOOK)
