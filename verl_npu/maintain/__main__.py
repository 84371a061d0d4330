"""`python -m verl_npu.maintain`: the programs of those who maintain the patches."""

from __future__ import annotations

import sys

import click

from ..errors import VerlNpuError
from ..reporting import clean
from .drift import drift
from .lock import lock


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Maintain the patches: lock a revision of an upstream, or see what a newer one means for each patch."""


main.add_command(lock)
main.add_command(drift)


def run() -> None:
    """Run the program; what is wrong with a source is one line and the status 2."""
    try:
        main(prog_name="python -m verl_npu.maintain")
    except VerlNpuError as error:
        click.echo(clean(str(error)), err=True)
        sys.exit(2)


if __name__ == "__main__":
    run()
