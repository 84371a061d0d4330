"""Every node but the head: it joins the head's Ray, stays as long as the job does, and ends as the job ends.

One that cannot take part tells the head, which would wait for it.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from verl_npu import progress
from verl_npu.errors import LaunchError
from verl_npu.findings import Finding
from verl_npu.language import gettext as _

from ..doctor.cluster import as_json
from ..processes import Interrupted, Interruptions, ProcessTree, answers, free_ports
from .cluster import Cluster, Request, cluster_of
from .network import here, resolve, towards
from .preparation import Prepared, refusal
from .ray import PORTS, RayProcess, worker_command
from .store import Announcement, End, Member, NoAnswer, Store

_LOOK = 1.0


def run(
    prepared: Prepared,
    findings: Sequence[Finding],
    processes: ProcessTree,
    interruptions: Interruptions,
    say: Callable[[str], None],
) -> End:
    """Take part, and say how the launch ended. What was started is left to those processes' end."""
    store = Store(prepared.address, prepared.request.grace, interruptions.pause)
    _meet(prepared, store, interruptions, say)
    own = Member(
        free_name(store, prepared.cluster, prepared.name, prepared.interface.address),
        prepared.interface.address,
        prepared.npus,
        findings=tuple(as_json(finding) for finding in findings),
    )
    refused = refusal([*findings])
    if refused:
        store.tell(replace(own, state="refused", reason=refused, findings=()))
        raise LaunchError(
            subject=_("this node"),
            expected=_("no error of the doctor"),
            found=refused,
            fix=_("mend it, or say --no-doctor"),
        )
    say(f"joining Ray at {prepared.address} as {own.name} ({own.address} over {prepared.interface.name})")
    command = worker_command(replace(prepared, name=own.name), free_ports(PORTS))
    ray = RayProcess(processes, command, prepared.environ, say)
    try:
        with progress.step(_("waiting until Ray has this machine")):
            _come_up(own, store, ray, interruptions)
        store.tell(own)
        return _stay(prepared, store, ray.check, interruptions)
    except Interrupted as interrupted:
        _leave(store, own, f"{interrupted} there", ())
        return End(interrupted.status, str(interrupted))
    except NoAnswer:
        return End(1, f"the head at {prepared.address} has not answered for {prepared.request.grace:g} s")
    except LaunchError as error:
        _leave(store, own, "Ray ended there", ray.last_lines())
        return End(1, str(error))


def _meet(prepared: Prepared, store: Store, interruptions: Interruptions, say: Callable[[str], None]) -> None:
    """Wait for the head, and see that it is the one of this launch."""
    request = prepared.request
    say(f"waiting for the head at {prepared.address} for {request.wait:g} s at most")
    with progress.step(_("waiting for the head")):
        announcement = _announced(prepared, store, interruptions)
    if announcement != Announcement(request.command, prepared.cluster.needed, prepared.cluster.most):
        raise LaunchError(
            subject=_("the head at {address}").format(address=prepared.address),
            expected=_("a launch of {command} on {needed} nodes").format(
                command=" ".join(request.command), needed=prepared.cluster.needed
            ),
            found=_("one of {command} on {needed} nodes").format(
                command=" ".join(announcement.command), needed=announcement.needed
            ),
            fix=_("give the same command and numbers on all nodes, or another --port to each launch"),
        )


def _announced(prepared: Prepared, store: Store, interruptions: Interruptions) -> Announcement:
    """Wait for the head's word. Raises LaunchError if it does not come in time."""
    request = prepared.request
    start = time.monotonic()
    while (announcement := read_announcement(store, prepared.head, request.port)) is None:
        if time.monotonic() - start > request.wait:
            raise LaunchError(
                subject=_("the head {head}").format(head=prepared.cluster.head),
                expected=_("verl-npu launch at {address} within {wait:g} s").format(
                    address=prepared.address, wait=request.wait
                ),
                found=_("nobody who answers"),
                fix=_("start it there too, see what it printed, or open the port in the firewall"),
            )
        _check_attached(request.attached)
        interruptions.pause(_LOOK)
    return announcement


def _come_up(own: Member, store: Store, ray: RayProcess, interruptions: Interruptions) -> None:
    """Wait until Ray has this node, or the launch has ended without it."""
    while store.end() is None and own.name not in {node.name for node in store.nodes() if node.alive}:
        ray.check()
        interruptions.pause(_LOOK)


def _stay(prepared: Prepared, store: Store, alive: Callable[[], None], interruptions: Interruptions) -> End:
    while True:
        end = store.end()
        if end is not None:
            return end
        alive()
        _check_attached(prepared.request.attached)
        interruptions.pause(_LOOK)


def _leave(store: Store, own: Member, reason: str, lines: tuple[str, ...]) -> None:
    try:
        store.tell(replace(own, state="left", reason=reason, lines=lines, findings=()))
    except NoAnswer:
        # The head is gone as well: there is nobody to tell.
        return


def _check_attached(attached: bool) -> None:
    """Raise LaunchError if the host that started this one over ssh is gone."""
    if attached and select.select([sys.stdin], [], [], 0)[0] and not os.read(sys.stdin.fileno(), 1):
        raise LaunchError(
            subject=_("the connection from the head"),
            expected=_("to stay open until the job has ended"),
            found=_("its end"),
            fix=_("see what the head printed"),
        )


_LONGEST = 180.0
"""Seconds that a head that was started at the same time may need until it answers."""


def tell(
    request: Request,
    environ: Mapping[str, str],
    refusal: LaunchError,
    interruptions: Interruptions,
    say: Callable[[str], None],
) -> int:
    """Say why this node cannot take part, here and to the head, and return the exit status.

    Raises the refusal again where nobody waits for this node: on the head, or if this host knows of no other one.
    """
    # Over ssh the end of this process tells the head, with what was printed.
    found = None if request.attached else _head_of(request, environ)
    if found is None:
        raise refusal
    cluster, head, address = found
    limit = min(request.wait, _LONGEST)
    say(str(refusal))
    say(f"telling the head {head}:{request.port} as soon as it answers, for {limit:g} s at most; Ctrl-C ends this")

    def told() -> bool:
        announcement = read_announcement(store, head, request.port)
        if announcement is None:
            return False
        if announcement == Announcement(request.command, cluster.needed, cluster.most):
            name = free_name(store, cluster, socket.gethostname(), address)
            store.tell(Member(name, address, 0, state="refused", reason=str(refusal)))
        return True

    try:
        store = Store(f"{head}:{request.port}", request.grace, interruptions.pause)
        with progress.step(_("waiting for the head")):
            answered = interruptions.until(told, limit, every=_LOOK)
        if not answered:
            say("the head has not answered")
    except (Interrupted, LaunchError, NoAnswer) as reason:
        say(f"the head was not told: {reason}")
    return 2


def _head_of(request: Request, environ: Mapping[str, str]) -> tuple[Cluster, str, str] | None:
    """Return who takes part, the head's address, and that of this host on the way there."""
    interfaces = here()
    try:
        cluster = cluster_of(request, environ, interfaces)
        if cluster.is_head:
            return None
        head = resolve(cluster.head)
        own = towards(head, interfaces)
    except LaunchError:
        # That is why this host is refused, or comes on top of it.
        return None
    return None if own.is_loopback else (cluster, head, own.address)


def read_announcement(store: Store, host: str, port: int) -> Announcement | None:
    """Return which launch the head leads; None if it does not answer yet. Raises what ends the store's waiting."""
    if not answers(host, port):
        return None
    try:
        return store.announcement()
    except NoAnswer:
        return None


def free_name(store: Store, cluster: Cluster, name: str, address: str) -> str:
    """Return the name of this node, which nobody else who is there has. Raises LaunchError if there is no room."""
    # One that was just lost, perhaps this very host, is alive to Ray for a while.
    alive = {node.name for node in store.nodes() if node.alive and answers(node.address, node.port)}
    if len(alive) >= cluster.most:
        raise LaunchError(
            subject=_("this node"),
            expected=_("one of the {most} of the launch at {address}").format(
                most=cluster.most, address=store.address
            ),
            found=_("all of them there already: {names}").format(names=", ".join(sorted(alive))),
            fix=_("give another launch another --port, or raise --spare on all nodes"),
        )
    # Containers often share a name.
    return f"{name}-{address}" if name in alive else name
