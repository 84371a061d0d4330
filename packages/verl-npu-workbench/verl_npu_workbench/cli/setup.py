"""`verl-npu setup`: prints the commands that install the environment of a pin, or that run a job in containers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click

from verl_npu.cli import terminal
from verl_npu.cli.options import example, json_option
from verl_npu.errors import CommandError, SourceError
from verl_npu.language import gettext as _
from verl_npu.version import __version__

from ..extras import need
from ..installation.container import SERVERS, Container, docker_run
from ..installation.container import container as make
from ..installation.job import Claim, Job, job
from ..installation.rayjob import manifest
from ..installation.steps import constraints, dockerfile, requirements, steps
from ..installation.target import Arch, Npu, Target
from ..pins import PINS
from ..places import put
from .options import arch_option, command, environment_option, named_of, refuse_ignored

_HEAD = """\
# {pin} on {nodes} x {npus} NPUs ({server}). Made by verl-npu {version}.
# The cluster needs KubeRay 1.6 or newer with batchScheduler.name=volcano, Volcano with Ascend's plugin, Ascend's
# device plugin, and the image in a registry that its machines reach.
#   kubectl apply -f FILE
#   kubectl get rayjob {name} -w
"""


@command(
    epilog=example(
        "verl-npu setup --pin v0.7.1 --npu a3 --arch arm --output install",
        "verl-npu setup --pin v0.9.1 --format docker-run --server a3",
        "verl-npu setup --pin v0.9.1 --format rayjob --nodes 4 -- bash run.sh",
    )
)
@click.argument("words", metavar="[COMMAND]...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--pin",
    type=click.Choice([*PINS]),
    required=True,
    help="The verl version to install: a release or commit that verl-npu was tested with.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["install", "docker-run", "rayjob"]),
    default="install",
    show_default=True,
    help="What to print: installation commands, a `docker run` command for one machine, or a KubeRay manifest.",
)
@arch_option
@environment_option
@click.option(
    "--npu",
    type=click.Choice([each.value for each in Npu]),
    default="a2",
    show_default=True,
    help="With --format install: the NPU type. a5 is the Ascend 950.",
)
@click.option("--jemalloc", is_flag=True, help="With --format install: also install the memory allocator jemalloc.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="With --format install: write an installation script, requirements files for pip, and a Dockerfile "
    "to this folder.",
)
@json_option("With --format install: print everything as JSON.")
@click.option(
    "--server",
    type=click.Choice([*SERVERS]),
    default="a2",
    show_default=True,
    help="With --format docker-run or rayjob: the machine type (the server's product name).",
)
@click.option(
    "--npus",
    type=int,
    help="With --format docker-run or rayjob: the number of NPUs to use on each machine [default: all].",
)
@click.option(
    "--image",
    default="",
    help="With --format docker-run or rayjob: the container image [default: the published image; if there is "
    "none, the image that the printed build command creates].",
)
@click.option(
    "--mount",
    "mounts",
    metavar="PATH",
    multiple=True,
    help="With --format docker-run: mount this folder of the host. You can repeat this option.",
)
@click.option(
    "--nodes",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="With --format rayjob: the number of machines.",
)
@click.option("--name", default="verl", show_default=True, help="With --format rayjob: the name of the job.")
@click.option(
    "--queue", default="default", show_default=True, help="With --format rayjob: the Volcano queue for the job."
)
@click.option(
    "--claim",
    "claims",
    metavar="NAME:/PATH",
    multiple=True,
    help="With --format rayjob: mount this volume claim. You can repeat this option.",
)
@click.option(
    "--interface",
    default="",
    help="With --format rayjob: the network interface that the machines use to reach each other.",
)
def setup(
    words: tuple[str, ...],
    pin: str,
    form: str,
    arch: str,
    named: str | None,
    npu: str,
    jemalloc: bool,
    output: Path | None,
    as_json: bool,
    server: str,
    npus: int | None,
    image: str,
    mounts: tuple[str, ...],
    nodes: int,
    name: str,
    queue: str,
    claims: tuple[str, ...],
    interface: str,
) -> None:
    """Print commands that install a verl pin or run a job in containers.

    A pin is a revision of verl that verl-npu was tested with. With --format install, setup prints the installation
    commands in order, each with the mistakes to avoid. The versions come from verl's documentation for the pin or,
    with --for image, from the container image that Ascend publishes. With --format docker-run, setup prints a `docker
    run` command for one machine, with the devices and driver files that a container needs. With --format rayjob, setup
    prints a KubeRay manifest; write the job's command after --. The manifest uses Volcano, so that the job gets either
    all machines at once or none. setup itself installs nothing and starts nothing.

    Exit status: 0 if the result was printed or written; 2 if the requested combination of options does not exist.
    """
    refuse_ignored(f"--format {form}", *(_CONTAINER_OPTIONS if form == "install" else _INSTALL_OPTIONS))
    if form == "install":
        if words:
            raise click.UsageError(_("a command after -- is supported only with --format rayjob"))
        host = Target(PINS[pin], Arch(arch), Npu(npu), named=named_of(PINS[pin], named), jemalloc=jemalloc)
        _install(host, output, as_json)
        return
    machines = SERVERS[server]
    target = Target(PINS[pin], Arch(arch), machines.npu, in_image=True, named=named_of(PINS[pin], named))
    if mounts and form != "docker-run":
        raise CommandError(
            subject="--mount",
            expected="--format docker-run",
            found=f"--format {form}",
            fix=_("to mount a volume in pods, use --claim NAME:/PATH instead of --mount"),
        )
    made = make(target, machines, npus, image, mounts)
    if form == "docker-run":
        if words or nodes > 1:
            raise CommandError(
                subject="--format docker-run",
                expected=_("no command and only one machine, because you start the job yourself inside the container"),
                found=f"-- {shlex.join(words)}" if words else f"--nodes {nodes}",
                fix=_("remove the command and --nodes, or use --format rayjob"),
            )
        click.echo(docker_run(made), nl=False)
        return
    if made.published:
        raise CommandError(
            subject="--format rayjob",
            expected=_("an image name with the address of the registry that each machine pulls the image from"),
            found=_("{image}, which Kubernetes would look for on Docker Hub").format(image=made.image),
            fix=_("add --image REGISTRY/{image}").format(image=made.image),
        )
    parsed = [Claim.parse(text) for text in claims]
    asked = job(made, nodes, words, name=name, queue=queue, claims=parsed, interface=interface)
    click.echo(_yaml(asked, made), nl=False)


_INSTALL_OPTIONS = ("npu", "jemalloc", "output", "as_json")
_CONTAINER_OPTIONS = ("server", "npus", "image", "mounts", "nodes", "name", "queue", "claims", "interface")


def _install(host: Target, output: Path | None, as_json: bool) -> None:
    if not host.documented:
        others = [each.name for each in PINS.values() if Target(each, host.arch, host.npu).documented]
        raise CommandError(
            subject=f"--pin {host.pin.name} --npu {host.npu.value}",
            expected=_("a pin whose documentation covers this NPU: {pins}").format(pins=_(", ").join(others)),
            found=_("the documentation of this pin does not cover this NPU"),
            fix=_("use one of these pins"),
        )
    files = _files(host, replace(host, in_image=True))
    if output is not None:
        _write(output, files)
    elif as_json:
        click.echo(json.dumps(_content(host, files), indent=2))
    else:
        for line in files["install.sh"].splitlines():
            terminal.echo(line)


def _yaml(asked: Job, made: Container) -> str:
    need("yaml", "--format rayjob", extra="kubernetes", error=CommandError)
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


def _files(host: Target, image: Target) -> dict[str, str]:
    made = {
        "install.sh": _script(host),
        "requirements.txt": requirements(host),
        "constraints.txt": constraints(host),
        f"Dockerfile.{host.npu.value}": dockerfile(image),
        "docker-run.sh": _docker_run(image),
    }
    return {name: text for name, text in made.items() if text}


def _docker_run(image: Target) -> str:
    if image.image is None:
        return ""
    made = make(image, SERVERS[image.npu.value])
    return f"#!/usr/bin/env bash\nset -euo pipefail\n{docker_run(made)}"


def _script(target: Target) -> str:
    lines = [
        "#!/usr/bin/env bash",
        f"# Installs what verl {target.name} needs on {target.npu.value.upper()} with {target.arch.value} processors.",
        f"# Versions are those of {target.environment.source}.",
        "# `verl-npu setup --output DIR` also writes the files that it needs.",
        "set -eo pipefail",
    ]
    for number, step in enumerate(steps(target), 1):
        lines += ["", f"# {number}. {step.title}."]
        lines += [f"#    Trap: {trap}." for trap in step.traps]
        lines += step.commands
    return "\n".join(lines) + "\n"


def _write(folder: Path, files: Mapping[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = [name for name, text in files.items() if _differs(folder / name, text)]
        if taken:
            raise SourceError(
                subject=f"--output {folder}",
                expected=_("a folder without files that would be overwritten"),
                found=_("the folder already contains {names}, with different content").format(
                    names=_(", ").join(taken)
                ),
                fix=_("specify another folder, or delete the files that you do not need"),
            )
        for name, text in files.items():
            put(folder / name, text.encode())
            terminal.echo(str(folder / name))
    except OSError as error:
        raise SourceError(
            subject=f"--output {folder}",
            expected=_("a writable folder"),
            found=error.strerror or str(error),
            fix=_("specify another folder"),
        ) from None


def _differs(path: Path, text: str) -> bool:
    return path.exists() and (not path.is_file() or path.read_bytes() != text.encode())


def _content(target: Target, files: Mapping[str, str]) -> dict[str, object]:
    return {
        "pin": target.pin.name,
        "arch": target.arch.value,
        "npu": target.npu.value,
        "python": target.python,
        "steps": [
            {"title": step.title, "commands": list(step.commands), "traps": list(step.traps)} for step in steps(target)
        ],
        "files": dict(files),
    }
