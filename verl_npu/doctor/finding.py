"""What the doctor says of one subject."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import asdict, dataclass

__all__ = ["Finding", "Verdict", "error", "exit_status", "ok", "skipped", "warning"]


class Verdict(enum.Enum):
    """How it stands with a subject."""

    OK = "ok"
    WARNING = "warning"
    """It may fail, or it is not what upstream's documents name."""
    ERROR = "error"
    """It is shown to fail."""
    SKIPPED = "skipped"
    """It cannot be seen here, or it is not needed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report; `needed`, `why` and `fix` are empty where there is nothing to mend."""

    name: str
    verdict: Verdict
    found: str
    needed: str = ""
    why: str = ""
    fix: str = ""
    """A command, or what to do where no command can do it."""

    def as_json(self) -> dict[str, str]:
        """The plain form."""
        return {**asdict(self), "verdict": self.verdict.value}


def ok(name: str, found: str) -> Finding:
    """It is as it should be."""
    return Finding(name, Verdict.OK, found)


def skipped(name: str, found: str, needed: str = "") -> Finding:
    """It was not judged; `found` says why."""
    return Finding(name, Verdict.SKIPPED, found, needed)


def warning(name: str, found: str, *, needed: str, why: str, fix: str) -> Finding:
    """It may fail."""
    return Finding(name, Verdict.WARNING, found, needed, why, fix)


def error(name: str, found: str, *, needed: str, why: str, fix: str) -> Finding:
    """It fails."""
    return Finding(name, Verdict.ERROR, found, needed, why, fix)


def exit_status(findings: Iterable[Finding]) -> int:
    """Return 2 if there is an error, 1 if there is a warning, else 0."""
    verdicts = {finding.verdict for finding in findings}
    return 2 if Verdict.ERROR in verdicts else int(Verdict.WARNING in verdicts)
