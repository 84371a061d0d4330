"""`verl-npu env`: the variables of the environment, and how an environment for a pin is installed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click

from ... import environment
from ...errors import SourceError
from ...language import capitalised
from ...language import gettext as _
from ...pins import PINS
from ...variable import USER
from ..installation.container import SERVERS, container, docker_run
from ..installation.steps import constraints, dockerfile, requirements, steps
from ..installation.target import Arch, Npu, Target
from . import terminal
from .options import arch_option, environment_option, example, json_option, named_of


@click.command(epilog=example("verl-npu env", "verl-npu env --pin v0.7.1 --npu a3 --arch arm --output install"))
@click.option("--pin", type=click.Choice([*PINS]), help="Print how an environment for this verl is installed.")
@arch_option
@click.option(
    "--npu", type=click.Choice([each.value for each in Npu]), default="a2", show_default=True, help="The kind of NPUs."
)
@environment_option
@click.option("--output", type=click.Path(path_type=Path), help="Write a script, pip's files and a Dockerfile there.")
@json_option("Print all of it as JSON.")
def env(pin: str | None, arch: str, npu: str, named: str | None, output: Path | None, as_json: bool) -> None:
    """List environment variables, or say how to install a pin of verl.

    A pin is a revision of verl that verl-npu was checked with. With --pin: the commands in order, with what goes wrong
    otherwise; versions are those that verl's documents of that pin name, or with --for image those of the image that
    Ascend publishes. Nothing is installed.

    Exit status: 0, or 2 if the files cannot be written.
    """
    if pin is None:
        if output is not None or as_json or named:
            raise click.UsageError(_("--for, --output and --json are about an installation: expected --pin PIN too"))
        _list_variables()
        return
    made = named_of(PINS[pin], named)
    host = Target(PINS[pin], Arch(arch), Npu(npu), named=made)
    image = Target(PINS[pin], Arch(arch), Npu(npu), in_image=True, named=made)
    files = _files(host, image)
    if output is not None:
        _write(output, files)
    elif as_json:
        click.echo(json.dumps(_content(host, files), indent=2))
    else:
        for line in files["install.sh"].splitlines():
            terminal.echo(line)


def _list_variables() -> None:
    for variable in environment.VARIABLES.values():
        if variable.audience != USER:
            continue
        default = _(" (default: {default})").format(default=variable.default) if variable.default else ""
        terminal.line(
            terminal.styled(variable.name, "bold"),
            terminal.styled(
                _("  is set to {text!r}").format(text=variable.text()) if variable.is_set() else "", "yellow"
            ),
        )
        terminal.paragraph(_("{summary}.").format(summary=capitalised(variable.summary)), indent="    ")
        terminal.paragraph(
            _("Value: {expected}{default}").format(expected=variable.expected, default=default), indent="    "
        )


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
    made = container(image, SERVERS[image.npu.value])
    return f"#!/usr/bin/env bash\nset -euo pipefail\n{docker_run(made)}"


def _script(target: Target) -> str:
    lines = [
        "#!/usr/bin/env bash",
        f"# Installs what verl {target.name} needs on {target.npu.value.upper()} with {target.arch.value} processors.",
        f"# Versions are those of {target.environment.source}.",
        "# `verl-npu env --output DIR` writes the files beside it.",
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
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
            terminal.echo(str(folder / name))
    except OSError as error:
        raise SourceError(
            subject=f"--output {folder}",
            expected=_("a folder that can be written"),
            found=error.strerror or str(error),
            fix=_("name another one"),
        ) from None


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
