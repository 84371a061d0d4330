"""`verl-npu container`: how a job for a pin runs in containers, on one machine or on a Kubernetes cluster."""

from __future__ import annotations

import shlex

import click

from ...errors import ContainerError
from ...language import gettext as _
from ...pins import PINS
from ...version import __version__
from ..extras import need
from ..installation.container import SERVERS, Container, docker_run
from ..installation.container import container as make
from ..installation.job import Claim, Job, job
from ..installation.rayjob import manifest
from ..installation.target import Arch, Target
from .options import arch_option, environment_option, example, named_of

_HEAD = """\
# {pin} on {nodes} x {npus} NPUs ({server}). Made by verl-npu {version}.
# The cluster needs KubeRay 1.6 or newer with batchScheduler.name=volcano, Volcano with Ascend's plugin, Ascend's
# device plugin, and the image in a registry that its machines reach.
#   kubectl apply -f FILE
#   kubectl get rayjob {name} -w
"""


@click.command(
    epilog=example(
        "verl-npu container --pin v0.9.1 --server a3 --format docker-run",
        "verl-npu container --pin v0.9.1 --format rayjob --nodes 4 -- bash run.sh",
    )
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--pin", type=click.Choice([*PINS]), required=True, help="The verl in the container.")
@click.option(
    "--server", type=click.Choice([*SERVERS]), default="a2", show_default=True, help="The model of the machines."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["docker-run", "rayjob"]),
    required=True,
    help="A command for one machine, or a manifest for Kubernetes.",
)
@click.option("--npus", type=int, help="NPUs on each machine [default: all that it has].")
@environment_option
@arch_option
@click.option("--image", default="", help="The image [default: the published one, or what `verl-npu env` builds].")
@click.option(
    "--mount", "mounts", metavar="PATH", multiple=True, help="A folder of the host for a container of docker-run."
)
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="Machines of a RayJob.")
@click.option("--name", default="verl", show_default=True, help="The name of a RayJob.")
@click.option("--queue", default="default", show_default=True, help="Volcano's queue for a RayJob.")
@click.option("--claim", "claims", metavar="NAME:/PATH", multiple=True, help="A volume claim that a RayJob mounts.")
@click.option("--interface", default="", help="The network interface of the machines of a RayJob.")
def container(
    command: tuple[str, ...],
    pin: str,
    server: str,
    form: str,
    npus: int | None,
    named: str | None,
    arch: str,
    image: str,
    mounts: tuple[str, ...],
    nodes: int,
    name: str,
    queue: str,
    claims: tuple[str, ...],
    interface: str,
) -> None:
    """Print how a job runs in containers with NPUs.

    As docker-run: the command for one machine, with the devices and the files of the driver that a container needs. As
    rayjob: a manifest for KubeRay, whose machines Volcano gives all at once or not at all; what follows -- is the
    job's command. Nothing is started.

    Exit status: 0, or 2 if it cannot be had like that.
    """
    machines = SERVERS[server]
    target = Target(PINS[pin], Arch(arch), machines.npu, in_image=True, named=named_of(PINS[pin], named))
    if mounts and form != "docker-run":
        raise ContainerError(
            subject="--mount",
            expected=_("a container of --format docker-run"),
            found=f"--format {form}",
            fix=_("give a volume claim with --claim NAME:/PATH"),
        )
    made = make(target, machines, npus, image, mounts)
    if form == "docker-run":
        if command or nodes > 1:
            raise ContainerError(
                subject="--format docker-run",
                expected=_("a container on one machine, in which you start the job"),
                found=f"-- {shlex.join(command)}" if command else f"--nodes {nodes}",
                fix=_("leave that out, or take --format rayjob"),
            )
        click.echo(docker_run(made), nl=False)
        return
    if made.published:
        raise ContainerError(
            subject="--format rayjob",
            expected=_("the published image's name with the address of its registry, from which each machine gets it"),
            found=_("{image}, which Kubernetes would look for at Docker's own hub").format(image=made.image),
            fix=_("add --image REGISTRY/{image}").format(image=made.image),
        )
    parsed = [Claim.parse(text) for text in claims]
    asked = job(made, nodes, command, name=name, queue=queue, claims=parsed, interface=interface)
    click.echo(_yaml(asked, made), nl=False)


def _yaml(asked: Job, made: Container) -> str:
    need("yaml", "--format rayjob", extra="kubernetes", error=ContainerError)
    import yaml

    head = _HEAD.format(
        pin=_("verl {pin}").format(pin=made.pin.name),
        nodes=asked.nodes,
        npus=made.npus,
        server=made.server.name,
        version=__version__,
        name=asked.name,
    )
    text: str = yaml.safe_dump(manifest(asked), sort_keys=False, width=119)
    return head + text
