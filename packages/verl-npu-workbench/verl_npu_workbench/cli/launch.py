"""`verl-npu launch`: runs one job over several machines, on Ray."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Iterator
from typing import Any

import click

from verl_npu import progress
from verl_npu.cli import terminal
from verl_npu.cli.options import example
from verl_npu.language import gettext as _
from verl_npu.language import ngettext

from ..launch.host import PORT, Host, Request, look
from ..launch.launching import launch as start
from .options import command as whole_command

_PORTS, _SECONDS = click.IntRange(1024, 65534), click.FloatRange(1)


@whole_command(
    epilog=example(
        "verl-npu launch --nodes 4 --head node1 -- bash run.sh",
        "verl-npu launch --hosts node1,node2 -- bash run.sh",
        "verl-npu launch --nodes 4 --head node1 --dry-run -- bash run.sh",
    )
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
@click.option(
    "--nodes",
    type=click.IntRange(1),
    help="The number of machines that the job needs [default: the number of machines in --hosts, or 1 without "
    "--hosts].",
)
@click.option(
    "--head",
    metavar="HOST",
    default="",
    help="The machine that starts the job [default: the first machine in --hosts].",
)
@click.option(
    "--hosts", metavar="A,B,…", default="", help="The names or addresses of the machines, separated by commas."
)
@click.option(
    "--port",
    type=_PORTS,
    default=PORT,
    show_default=True,
    help="The port that Ray uses. The machines use the next port (PORT + 1) to find each other.",
)
@click.option(
    "--npus",
    type=click.IntRange(1),
    help="Require this machine to have exactly this number of NPUs [default: any number].",
)
@click.option(
    "--wait",
    type=_SECONDS,
    default=600.0,
    show_default=True,
    help="The maximum number of seconds to wait for all machines to join.",
)
@click.option(
    "--ray",
    metavar="OPTION",
    multiple=True,
    help="An option that is passed to `ray start`. You can repeat this option.",
)
@click.option(
    "--doctor/--no-doctor",
    default=True,
    show_default=True,
    help="Check this machine with `verl-npu doctor` before the job starts.",
)
@click.option(
    "--jemalloc",
    is_flag=True,
    help="Run the job with the memory allocator jemalloc. jemalloc must be installed on each machine.",
)
@click.option(
    "--dry-run", is_flag=True, help="Only print what this command would do on this machine. No NPUs are needed."
)
def launch(command: tuple[str, ...], hosts: str, dry_run: bool, **options: Any) -> None:
    """Run a job on several machines.

    Run the same command on each machine, by hand or with srun or mpirun. Write the job's command after --. Once all
    machines have joined, the job starts on the head machine and prints its output in that machine's terminal. Each
    machine finds its network interface, counts its NPUs, and checks its environment with `verl-npu doctor`. Then each
    machine calls `ray start` with the environment variables that verl's documentation requires, unless you have
    already set them. At the end, each machine stops only the processes that this command started there.

    Exit status: 0 on every machine if the job finished; 1 if the head machine or another machine was lost; 2 if the
    job was not started; 130 after Ctrl-C; otherwise the exit status of the job.
    """
    listed = tuple(filter(None, map(str.strip, hosts.split(","))))
    request = Request(command=command, hosts=listed, **options)
    with progress.step(_("checking this machine's network and NPUs")):
        host = look(request, os.environ)
    if not dry_run:
        sys.exit(start(host, lambda line: terminal.fail(_("launch: {line}").format(line=line))))
    for line in _plan(host):
        terminal.echo(line)


def _plan(host: Host) -> Iterator[str]:
    role = _("the head") if host.is_head else _("a node of the head {address}").format(address=host.head)
    said = ngettext("{name}: {role}; {nodes} node", "{name}: {role}; {nodes} nodes", host.nodes)
    yield said.format(name=socket.gethostname(), role=role, nodes=host.nodes)
    yield _("  NPUs       {count}").format(count=host.npus)
    for name, value in host.added.items():
        yield _("  variable   {name}={value}").format(name=name, value=value)
    yield _("  Ray        {command}").format(command=shlex.join(host.ray()))
    for refusal in host.refusals:
        yield _("the job could not be started on this machine: {doubt}").format(doubt=refusal)
