"""What users posted of failed jobs in public threads, and the cause that the thread ended with.

Rules are written from the part that is known. The other part is read by nobody who writes rules until a release: how
many of its causes are named is the figure that counts. A thread's number alone says in which part it is.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from pathlib import Path

__all__ = ["OPEN", "Kind", "Part", "Posted", "part_of", "read"]

FOLDER = Path(__file__).parent
OPEN = "open"
"""The label of a thread that ended without a cause."""


class Part(enum.Enum):
    """The parts of the bench, each a folder."""

    KNOWN = "known"
    UNREAD = "unread"
    FURTHER = "further"
    """More threads that rules are written from, by whatever number: pull requests that quote the error they mend."""


class Kind(enum.Enum):
    """Where the lines were posted."""

    ISSUE = "issue"
    PULL = "pull"
    """A pull request that quotes the error which it mends."""


@dataclass(frozen=True, slots=True)
class Posted:
    """What one thread shows of a failed job."""

    repository: str
    number: int
    kind: Kind
    date: str
    """The day on which it was posted, as 2026-01-31; empty if it is not known."""
    lines: tuple[str, ...]
    """The lines that matter, as they were posted."""
    label: str
    """The rule that means the cause, a code of CAUSES, or OPEN."""
    cause: str
    """The cause in a sentence; empty if the thread is open."""
    who: str
    """The login of who named the cause; empty if the thread is open."""
    said: str
    """How they said it, in a short quote; empty if the thread is open."""

    @property
    def thread(self) -> str:
        """The thread, as `owner/repository#number`."""
        return f"{self.repository}#{self.number}"


def part_of(number: int) -> Part:
    """The part of a thread that is none of the further ones: threads with an even number are known."""
    return Part.UNREAD if number % 2 else Part.KNOWN


def read(part: Part) -> tuple[Posted, ...]:
    """Read one part, in the order of repositories and numbers."""
    files = sorted((FOLDER / part.value).glob("*.jsonl"))
    return tuple(_posted(line) for file in files for line in file.read_text(encoding="utf-8").splitlines())


def _posted(line: str) -> Posted:
    row = json.loads(line)
    return Posted(**{**row, "kind": Kind(row["kind"]), "lines": tuple(row["lines"])})
