"""What `--help` says beyond the options: an example of each command, and the variables of the environment."""

from __future__ import annotations

import click

from .. import environment
from ..variable import USER
from . import terminal

__all__ = ["env", "example"]


def example(*commands: str) -> str:
    """Return the end of a command's help: calls that one can copy."""
    # \b keeps click from filling the lines as running text.
    return "\n".join(["\b", "Example:" if len(commands) == 1 else "Examples:", *(f"  {each}" for each in commands)])


@click.command(epilog=example("verl-npu env"))
def env() -> None:
    """List the environment variables, and which are set here.

    Exit status: 0.
    """
    for variable in environment.VARIABLES.values():
        if variable.audience != USER:
            continue
        default = f" (default: {variable.default})" if variable.default else ""
        terminal.line(
            terminal.styled(variable.name, "bold"),
            terminal.styled(f"  is set to {variable.text()!r}" if variable.is_set() else "", "yellow"),
        )
        terminal.paragraph(variable.summary[:1].upper() + variable.summary[1:] + ".", indent="    ")
        terminal.paragraph(f"Value: {variable.expected}{default}", indent="    ")
