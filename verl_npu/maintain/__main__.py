"""`python -m verl_npu.maintain`: what those need who maintain the patches."""

from __future__ import annotations

import sys

import click

from ..cli import terminal
from ..errors import VerlNpuError
from .drift import drift
from .lock import lock


@click.group(commands=(drift, lock), context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Maintain the patches of verl-npu: see what a newer upstream means for them, and record what they rely on."""


if __name__ == "__main__":
    try:
        main(prog_name="python -m verl_npu.maintain")
    except VerlNpuError as error:
        terminal.fail(str(error))
        sys.exit(2)
