"""`verl-npu env`, which lists the environment variables."""

from __future__ import annotations

import click

from .. import environment
from ..language import capitalised
from ..language import gettext as _
from ..variable import USER
from . import terminal
from .options import example


@click.command(epilog=example("verl-npu env"))
def env() -> None:
    """List the environment variables, with values and defaults.

    Exit status: 0.
    """
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
