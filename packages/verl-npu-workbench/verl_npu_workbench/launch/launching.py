"""A launch on this host, from its checks to the end of all that it started; and what it would do, in words."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from verl_npu import progress
from verl_npu.errors import LaunchError, VerlNpuError
from verl_npu.findings import Finding
from verl_npu.language import gettext as _
from verl_npu.language import ngettext

from ..processes import Interrupted, Interruptions, ProcessTree
from . import head, worker
from .cluster import Request
from .over_ssh import remote_command
from .preparation import Prepared, examine, prepare, refusal
from .ray import entrypoint, head_command, worker_command
from .store import End, NoAnswer


def launch(request: Request, environ: Mapping[str, str], say: Callable[[str], None]) -> int:
    """Take part in a launch, and return the exit status; whatever happens, nothing that was started here stays.

    Raises VerlNpuError for what the user can mend.
    """
    with Interruptions() as interruptions:
        try:
            with progress.step(_("looking at this machine's network and NPUs")):
                prepared = prepare(request, environ)
        except LaunchError as refusal:
            return worker.tell(request, environ, refusal, interruptions, say)
        processes = ProcessTree()
        try:
            end = _take_part(prepared, processes, interruptions, say)
            say(f"{'done' if end.status == 0 else 'FAILED'}: {end.reason} (status {end.status})")
            return end.status
        except Interrupted as interrupted:
            say(f"ended by {interrupted}")
            return interrupted.status
        finally:
            with progress.step(_("ending what was started")):
                left = processes.end(request.grace, lambda: interruptions.impatient)
            if left:
                say(f"WARNING: these processes cannot be ended: {', '.join(map(str, left))}")


def _take_part(
    prepared: Prepared, processes: ProcessTree, interruptions: Interruptions, say: Callable[[str], None]
) -> End:
    findings: list[Finding] = []
    if prepared.request.doctor:
        try:
            with progress.step(_("the doctor looks at this machine")):
                findings = examine(prepared, processes, interruptions)
        except VerlNpuError as error:
            say(f"WARNING: the doctor did not answer: {error}")
    if not prepared.cluster.is_head:
        try:
            return worker.run(prepared, findings, processes, interruptions, say)
        except NoAnswer as silence:
            return End(1, f"the head at {prepared.address} does not answer any more: {silence}")
    errors = refusal(findings)
    if errors:
        raise LaunchError(
            subject=_("this node"),
            expected=_("no error of the doctor"),
            found=errors,
            fix=_("mend it, or say --no-doctor"),
        )
    return head.run(prepared, findings, processes, interruptions, say)


_TEMP = Path("/tmp/verl-npu-…")


def lines(prepared: Prepared, doubts: Sequence[str] = ()) -> Iterator[str]:
    """Yield the plan; `doubts` are what this host lacks for it."""
    cluster, request = prepared.cluster, prepared.request
    role = _("the head")
    if not cluster.is_head:
        role = _("a node of the head {name} ({address})").format(name=cluster.head, address=prepared.address)
    yield _("{name}: {role}; {nodes} nodes, {spare} spare").format(
        name=prepared.name, role=role, nodes=cluster.needed, spare=cluster.spare
    )
    yield _("  interface  {name} ({address})").format(name=prepared.interface.name, address=prepared.interface.address)
    yield _("  NPUs       {count}").format(count=prepared.npus)
    doctor = "verl-npu doctor --level static" if request.doctor else _("left out")
    yield _("  doctor     {command}").format(command=doctor)
    for name, value in prepared.added.items():
        yield _("  variable   {name}={value}").format(name=name, value=value)
    ports = (0, 0, 0)
    if cluster.is_head:
        command = head_command(prepared, request.temp or _TEMP, ports)
        yield _("  Ray        {command}").format(command=shlex.join(command))
        for host in cluster.hosts[1:] if request.ssh else ():
            remote = f"ssh -o BatchMode=yes {host} {shlex.quote(remote_command(prepared))}"
            yield _("  start      {command}").format(command=remote)
        if cluster.most > 1:
            count = cluster.needed - 1
            others = ", ".join(cluster.hosts[1:]) or ngettext(
                "{count} other node", "{count} other nodes", count
            ).format(count=count)
            yield _("  wait       {seconds:g} s for {others}").format(seconds=request.wait, others=others)
        job = entrypoint(request.command, request.folder, prepared.environ)
        yield _("  job        {command}").format(command=job)
        yield _("  restarts   {count}").format(count=request.restarts)
    else:
        yield _("  wait       {seconds:g} s for the head").format(seconds=request.wait)
        yield _("  Ray        {command}").format(command=shlex.join(worker_command(prepared, ports)))
    for doubt in doubts:
        yield _("it could not be started on this machine: {doubt}").format(doubt=doubt)
    if cluster.most > 1:
        asked = _("asked for") if request.ssh else _("not asked for")
        yield _("every other node: the same command there, or over ssh ({asked})").format(asked=asked)
