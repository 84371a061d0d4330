"""The command `verl-npu`."""

from __future__ import annotations

import sys

import click

from ..errors import VerlNpuError
from ..version import __version__
from .check import check
from .drift import drift
from .explain import explain
from .lock import lock
from .mindspeed import mindspeed
from .status import status

__all__ = ["main"]


class _Commands(click.Group):
    """A user's mistake ends with one line and status 2, never with a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except VerlNpuError as error:
            click.echo(f"verl-npu: {error}", err=True)
            sys.exit(2)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="verl-npu")
def main() -> None:
    """Upstream verl on Ascend NPUs: what is patched, what drifted, what a pin needs."""


for command in (check, drift, explain, lock, mindspeed, status):
    main.add_command(command)
