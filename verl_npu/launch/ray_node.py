"""Ray's node on this host, as a process of this launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..errors import LaunchError
from ..family import Family, Member

__all__ = ["Node"]

_LINES = 12
_TRIES = 3
_BUSY = "timed out during startup"
"""What `ray start` says when its own half a minute was too short, on a host that is busy."""


class Node:
    """The process of `ray start`. Raises LaunchError if it cannot be started."""

    def __init__(
        self, family: Family, command: Sequence[str], environ: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        self._family = family
        self._command = command
        self._environ = environ
        self._say = say
        self._tries = _TRIES
        self._member = self._start()

    def _start(self) -> Member:
        self._tries -= 1
        try:
            return self._family.start(self._command, self._environ)
        except OSError as error:
            raise LaunchError(
                subject="ray start", expected="Ray to start", found=error.strerror or str(error), fix="reinstall ray"
            ) from error

    def has_ended(self) -> bool:
        """Whether it runs no more."""
        return self._member.process.poll() is not None

    def last_lines(self) -> tuple[str, ...]:
        """Return what it printed last."""
        return self._member.last_lines(_LINES)

    def check(self) -> None:
        """Raise LaunchError if it has ended. One that was too slow to come up is started again."""
        if not self.has_ended():
            return
        lines = self.last_lines()
        if self._tries and _BUSY in " ".join(lines):
            self._say("Ray gave up waiting for itself on this busy host, and is started again")
            self._member = self._start()
            return
        raise LaunchError(
            subject="Ray on this host",
            expected="to run until the job has ended",
            found=f"its end with status {self._member.process.returncode}: {' | '.join(lines)}",
            fix="see its logs, raylet.out and gcs_server.out",
        )
