"""Ray's node on this host, as a process of this launch."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import LaunchError
from .family import Family, Member

__all__ = ["check", "start"]

_LINES = 12


def start(family: Family, command: Sequence[str], environ: dict[str, str]) -> Member:
    """Start it. Raises LaunchError."""
    try:
        return family.start(command, environ)
    except OSError as error:
        raise LaunchError(
            subject="ray start", expected="Ray to start", found=error.strerror or str(error), fix="reinstall ray"
        ) from error


def check(member: Member) -> None:
    """Raise LaunchError if it has ended."""
    if member.process.poll() is None:
        return
    raise LaunchError(
        subject="Ray on this host",
        expected="to run until the job has ended",
        found=f"its end with status {member.process.returncode}: {' | '.join(member.last_lines(_LINES))}",
        fix="see its logs, raylet.out and gcs_server.out",
    )
