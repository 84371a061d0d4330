"""What a launch would do on each node, in words and command lines; nothing is started."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from . import job
from .over_ssh import remote_command
from .preparation import Prepared
from .ray_start import head_command, worker_command

__all__ = ["lines"]

_TEMP = Path("/tmp/verl-npu-…")


def lines(prepared: Prepared) -> Iterator[str]:
    """Yield the plan."""
    party, request = prepared.party, prepared.request
    role = "the head" if party.is_head else f"a node of the head {party.head} ({prepared.address})"
    yield f"{prepared.name}: {role}; {party.needed} nodes, {party.spare} spare"
    yield f"  interface  {prepared.interface.name} ({prepared.interface.address})"
    yield f"  NPUs       {prepared.npus}"
    yield f"  doctor     {'verl-npu doctor --level static' if request.doctor else 'left out'}"
    for name, value in prepared.added.items():
        yield f"  variable   {name}={value}"
    if party.is_head:
        yield f"  Ray        {shlex.join(head_command(prepared, request.temp or _TEMP, (0, 0, 0)))}"
        for host in party.hosts[1:] if request.ssh else ():
            yield f"  start      ssh -o BatchMode=yes {host} {shlex.quote(remote_command(prepared))}"
        yield f"  wait       {request.wait:g} s for {', '.join(party.hosts[1:]) or f'{party.needed - 1} other nodes'}"
        yield f"  job        {job.entrypoint(request.command, request.folder, prepared.environ)}"
        yield f"  restarts   {request.restarts}"
    else:
        yield f"  wait       {request.wait:g} s for the head"
        yield f"  Ray        {shlex.join(worker_command(prepared, (0, 0, 0)))}"
    yield f"every other node: the same command there, or over ssh ({'asked for' if request.ssh else 'not asked for'})"
