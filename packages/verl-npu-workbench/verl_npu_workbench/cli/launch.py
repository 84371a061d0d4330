"""`verl-npu launch`: one job over several machines, on Ray."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from verl_npu.cli import terminal
from verl_npu.cli.options import example
from verl_npu.errors import LaunchError
from verl_npu.language import gettext as _

from ..launch.cluster import PORT, Request, of_file, of_text
from ..launch.launching import launch as start
from ..launch.launching import lines
from ..launch.preparation import check_restarts, prepare
from .options import command

_SECONDS = click.FloatRange(1)


@command(
    epilog=example(
        "verl-npu launch --nodes 4 --head node1 -- bash run.sh",
        "verl-npu launch --hosts node1,node2 --ssh -- bash run.sh",
        "verl-npu launch --nodes 4 --head node1 --dry-run -- bash run.sh",
    )
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
@click.option("--nodes", type=click.IntRange(1), help="How many machines the job needs [default: as listed, or 1].")
@click.option("--head", metavar="HOST", default="", help="The machine that runs the job [default: the first listed].")
@click.option("--hosts", metavar="A,B,…", default="", help="The machines, by name or address.")
@click.option("--hostfile", type=click.Path(path_type=Path), help="A file with a machine on each line.")
@click.option("--ssh", is_flag=True, help="Start all of --hosts or --hostfile from the head, over ssh.")
@click.option("--spare", type=click.IntRange(0), default=0, show_default=True, help="More machines that may join.")
@click.option("--restarts", type=click.IntRange(0), default=0, show_default=True, help="Times to go on after a loss.")
@click.option("--interface", metavar="NAME", default="", help="The network interface of this machine.")
@click.option("--port", type=click.IntRange(1024, 65535), default=PORT, show_default=True, help="Of Ray on the head.")
@click.option("--npus", type=click.IntRange(1), help="How many NPUs this machine must have [default: any].")
@click.option("--cpus", type=click.IntRange(1), help="How many CPUs Ray counts here [default: all].")
@click.option("--wait", metavar="S", type=_SECONDS, default=600.0, show_default=True, help="Seconds for all to come.")
@click.option("--grace", metavar="S", type=_SECONDS, default=30.0, show_default=True, help="Seconds to end by itself.")
@click.option("--temp-dir", type=click.Path(path_type=Path), help="For Ray's sockets and logs [default: a new one].")
@click.option("--doctor/--no-doctor", default=True, show_default=True, help="Whether the doctor looks at it first.")
@click.option("--attached", is_flag=True, hidden=True)
@click.option("--dry-run", is_flag=True, help="Only say what would happen, on a machine without NPUs too.")
def launch(
    command: tuple[str, ...],
    nodes: int | None,
    head: str,
    hosts: str,
    hostfile: Path | None,
    ssh: bool,
    spare: int,
    restarts: int,
    interface: str,
    port: int,
    npus: int | None,
    cpus: int | None,
    wait: float,
    grace: float,
    temp_dir: Path | None,
    doctor: bool,
    attached: bool,
    dry_run: bool,
) -> None:
    """Run a job over several machines.

    Give the same command on each machine, by hand, srun or mpirun, or once with --ssh. What follows -- is the job; it
    runs on the head when all machines are there, and its output appears there. Each machine looks for its network
    interface, counts its NPUs, is examined by the doctor, sets what verl's documents ask for unless you have set it,
    and joins a Ray of this launch alone. At the end each ends what it has started, and nothing else.

    When a machine is lost, the job has --grace seconds to end, then it is stopped. With --restarts it is started again
    as soon as there are --nodes machines; verl goes on from its last checkpoint (trainer.resume_mode=auto).

    Exit status: 0 the job ended with 0, else the job's own on every machine; 1 a machine or the head was lost, 2 it
    was not started, 130 after Ctrl-C.
    """
    if hosts and hostfile is not None:
        raise click.UsageError(_("give either --hosts or --hostfile"))
    named = of_file(hostfile) if hostfile is not None else of_text(hosts) if hosts else ()
    if ssh and not named:
        raise click.UsageError(_("--ssh needs --hosts or --hostfile"))
    if restarts:
        for warning in check_restarts(command):
            _say(_("WARNING: {warning}").format(warning=warning))
    request = Request(
        command=command, nodes=nodes, spare=spare, head=head, hosts=named, folder=Path.cwd(), interface=interface,
        port=port, npus=npus, cpus=cpus, wait=wait, grace=grace, restarts=restarts, temp=temp_dir, doctor=doctor,
        ssh=ssh, attached=attached,
    )  # fmt: skip
    if dry_run:
        doubts: list[str] = []
        for line in lines(prepare(request, os.environ, doubts), doubts):
            terminal.echo(line)
        return
    if ssh and not prepare(request, os.environ).cluster.is_head:
        raise LaunchError(
            subject="--ssh",
            expected=_("to be started on the head"),
            found=_("another machine"),
            fix=_("start it there"),
        )
    sys.exit(start(request, os.environ, _say))


def _say(line: str) -> None:
    terminal.fail(_("launch: {line}").format(line=line))
