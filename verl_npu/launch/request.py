"""What is to be launched, as the command line says it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .party import Asked

__all__ = ["PORT", "Request"]

PORT = 6766
"""Where Ray's control service listens on the head; the one of verl's page on several machines."""


@dataclass(frozen=True, slots=True)
class Request:
    """One launch; times are in seconds."""

    command: tuple[str, ...]
    asked: Asked = Asked()  # noqa: RUF009 - it is frozen
    folder: Path = Path()
    """Where the job is started."""
    interface: str = ""
    port: int = PORT
    npus: int | None = None
    cpus: int | None = None
    wait: float = 600.0
    """For all nodes to come, at the beginning and before each restart."""
    grace: float = 30.0
    """For what should end by itself: the job after a node was lost, Ray after the job, and a head that is silent."""
    restarts: int = 0
    temp: Path | None = None
    """The folder of Ray's sockets and logs, which has the same path on all hosts; None for a new one."""
    doctor: bool = True
    ssh: bool = False
    """Whether this host starts the others."""
    attached: bool = False
    """Whether the end of the standard input ends this, which another host started."""
