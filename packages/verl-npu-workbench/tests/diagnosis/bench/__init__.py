"""Logs of failed jobs that users posted in public threads, and the cause that each thread ended with.

Rules are written from the known part. Nobody who writes rules reads the unread part until a release: the number of its
causes that the diagnosis names is the figure that counts. A thread's number alone decides its part.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
OPEN = "open"
"""The label of a thread that ended without a cause."""


class Part(enum.Enum):
    """The parts of the bench, each a folder."""

    KNOWN = "known"
    UNREAD = "unread"
    FURTHER = "further"
    """More threads that rules are written from, whatever their number: pull requests that quote the error they fix."""


class Kind(enum.Enum):
    """The kind of thread that has the lines."""

    ISSUE = "issue"
    PULL = "pull"
    """A pull request that quotes the error it fixes."""


@dataclass(frozen=True, slots=True)
class Posted:
    """One thread's evidence of a failed job."""

    repository: str
    number: int
    kind: Kind
    date: str
    """The day on which it was posted, as 2026-01-31; empty if it is not known."""
    lines: tuple[str, ...]
    """The lines that matter, as they were posted."""
    label: str
    """The rule for this cause, a code of CAUSES, or OPEN."""
    cause: str
    """The cause in a sentence; empty if the thread is open."""
    who: str
    """The login of the person who named the cause; empty if the thread is open."""
    said: str
    """A short quote in which they named it; empty if the thread is open."""

    @property
    def thread(self) -> str:
        """The thread, as `owner/repository#number`."""
        return f"{self.repository}#{self.number}"


def part_of(number: int) -> Part:
    """Return the part of a thread that is no further one: threads with an even number are known."""
    return Part.UNREAD if number % 2 else Part.KNOWN


def read(part: Part) -> tuple[Posted, ...]:
    """Read one part, in the order of repositories and numbers."""
    files = sorted((FOLDER / part.value).glob("*.jsonl"))
    return tuple(_posted(line) for file in files for line in file.read_text(encoding="utf-8").splitlines())


def _posted(line: str) -> Posted:
    row = json.loads(line)
    return Posted(**{**row, "kind": Kind(row["kind"]), "lines": tuple(row["lines"])})
