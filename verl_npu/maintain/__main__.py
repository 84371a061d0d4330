"""`python -m verl_npu.maintain`: the commands for people who maintain the patches."""

from __future__ import annotations

import sys

import click

from ..cli import terminal
from ..errors import VerlNpuError
from .drift import drift
from .lock import lock


@click.group(commands=(drift, lock), context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Maintain verl-npu's patches: compare them with a newer upstream version, and write lock files."""


if __name__ == "__main__":
    try:
        main(prog_name="python -m verl_npu.maintain")
    except VerlNpuError as error:
        terminal.fail(str(error))
        sys.exit(2)
