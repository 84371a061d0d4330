"""Options that several workbench commands share, and the class of commands that start processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
from click.core import ParameterSource

from verl_npu.cli.options import Command
from verl_npu.language import gettext as _

from ..installation.target import Arch
from ..pins import ENVIRONMENTS, PINS, Environment, Pin
from ..processes import ended_whole


class Whole(click.Command):
    """A click command that terminates its child processes when a signal terminates the command."""

    def invoke(self, ctx: click.Context) -> object:
        with ended_whole():
            return super().invoke(ctx)


command = partial(click.command, cls=Whole)
"""A decorator like `click.command` whose command, when a signal ends it, also ends all processes it started."""

verl_option = click.option(
    "--verl",
    "--source",
    "verl",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="The source tree of verl. The script is started in this folder.",
)
unconfined_option = click.option(
    "--unconfined",
    is_flag=True,
    help="Run the job's code without a sandbox. The code can then read your home folder and use your network.",
)
arch_option = click.option(
    "--arch",
    type=click.Choice([each.value for each in Arch]),
    default="arm",
    show_default=True,
    help="The processor architecture of the machines.",
)
html_option = click.option(
    "--html",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the result to this file, as a self-contained HTML page.",
)
environment_option = click.option(
    "--for",
    "named",
    type=click.Choice(ENVIRONMENTS),
    help="Which versions to use: the versions in verl's documentation, or the versions in the published image "
    "[default: documents].",
)


def output_option(folder: str) -> Callable[[Command], Command]:
    """Return a click decorator for the option `--output`, which names the folder for the results."""
    return click.option(
        "--output",
        type=click.Path(path_type=Path),
        default=Path(folder),
        show_default=True,
        help="The folder to write the results to.",
    )


def refuse_ignored(chosen: str, *names: str) -> None:
    """Raise click.UsageError if the user specified an option that has no effect together with the option `chosen`.

    `names` are the parameter names of the options to check.
    """
    context = click.get_current_context()
    given = [each for each in names if context.get_parameter_source(each) is ParameterSource.COMMANDLINE]
    if given:
        options = [parameter.opts[0] for parameter in context.command.params if parameter.name in given]
        raise click.UsageError(
            _("{options} cannot be used with {chosen}").format(options=_(", ").join(options), chosen=chosen)
        )


def named_of(pin: Pin, named: str | None) -> Environment:
    """Return the pin's environment called `named`, or its first environment if `named` is None.

    Raises click.UsageError if the pin has no environment of that name.
    """
    found = next((each for each in pin.environments if named in (None, each.id)), None)
    if found is None:
        have = _(", ").join(each.id for each in pin.environments)
        also = _(", ").join(
            other.name for other in PINS.values() if any(each.id == named for each in other.environments)
        )
        raise click.UsageError(
            _(
                "--for {named} is not available with --pin {pin}: specify one of {have}; {named} is available only "
                "with --pin {also}"
            ).format(named=named, have=have, pin=pin.name, also=also)
        )
    return found
