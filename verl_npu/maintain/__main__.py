"""`python -m verl_npu.maintain`: what those need who maintain the patches."""

from __future__ import annotations

import click

from .drift import drift
from .lock import lock


@click.group(commands=(drift, lock), context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Maintain the patches of verl-npu: see what a newer upstream means for them, and record what they rely on."""


if __name__ == "__main__":
    main(prog_name="python -m verl_npu.maintain")
