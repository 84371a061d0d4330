"""What several commands of the workbench take, and the class of those that start processes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click
from click.core import ParameterSource

from verl_npu.language import gettext as _

from ..installation.target import Arch
from ..pins import ENVIRONMENTS, PINS, Environment, Pin
from ..processes import ended_whole


class Whole(click.Command):
    """A command that a signal ends with all that it has started."""

    def invoke(self, ctx: click.Context) -> object:
        with ended_whole():
            return super().invoke(ctx)


command = partial(click.command, cls=Whole)
"""Declare a command as click does; a signal ends it with all that it has started."""

verl_option = click.option(
    "--verl",
    "--source",
    "verl",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="The source tree to start it in.",
)
unconfined_option = click.option(
    "--unconfined", is_flag=True, help="Run what is not ours without a sandbox, with your home and your network."
)
arch_option = click.option(
    "--arch",
    type=click.Choice([each.value for each in Arch]),
    default="arm",
    show_default=True,
    help="The processors.",
)
environment_option = click.option(
    "--for",
    "named",
    type=click.Choice(ENVIRONMENTS),
    help="The pin's environment: that of verl's documents, or of the image that is published for it "
    "[default: documents].",
)


def refuse_ignored(chosen: str, *names: str) -> None:
    """Raise click.UsageError for options that would be ignored beside the `chosen` one: the answer would be to another
    question. `names` are their parameters."""
    context = click.get_current_context()
    given = [each for each in names if context.get_parameter_source(each) is ParameterSource.COMMANDLINE]
    if given:
        options = [parameter.opts[0] for parameter in context.command.params if parameter.name in given]
        raise click.UsageError(
            _("{options} cannot be used with {chosen}").format(options=_(", ").join(options), chosen=chosen)
        )


def named_of(pin: Pin, named: str | None) -> Environment:
    """Return the environment of that name; the first without one. Raises click.UsageError if the pin has none."""
    found = next((each for each in pin.environments if named in (None, each.id)), None)
    if found is None:
        have = _(", ").join(each.id for each in pin.environments)
        also = _(", ").join(
            other.name for other in PINS.values() if any(each.id == named for each in other.environments)
        )
        raise click.UsageError(
            _("--for {named}: expected one of {have} with --pin {pin}; {also} has {named}").format(
                named=named, have=have, pin=pin.name, also=also
            )
        )
    return found
