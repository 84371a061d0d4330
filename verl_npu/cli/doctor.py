"""`verl-npu doctor`."""

from __future__ import annotations

from pathlib import Path

import click

from .doctor_log import doctor_log
from .help import example

__all__ = ["doctor"]


@click.command(epilog=example("verl-npu doctor --log train.log", "verl-npu doctor --log ~/ascend/log --log train.log"))
@click.option(
    "--log",
    "logs",
    type=click.Path(path_type=Path),
    multiple=True,
    required=True,
    help="The log of a failed job, or a folder of logs (Ray's, CANN's plog); may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
def doctor(logs: tuple[Path, ...], as_json: bool) -> None:
    """Say why a job failed, and what to do.

    Exit status: 0 the log has no error, 1 it has one, 2 it cannot be read.
    """
    doctor_log(logs, as_json)
