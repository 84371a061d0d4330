"""What is wrong with a job, with its environment, or with what it printed: one shape of a finding, one form of a rule.

A rule says when it can be asked. What depends on the job's settings alone can be asked before the run from a script as
well as in the job, so that what the job refuses, `verl-npu lint` refuses too.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from .errors import VerlNpuError
from .language import gettext as _

Subject = TypeVar("Subject")


class Severity(enum.Enum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """It may fail, or it is not what upstream's documents name."""
    ERROR = "error"
    """It is shown to fail."""
    SKIPPED = "skipped"
    """It cannot be seen here, or it is not needed."""


class Status(enum.IntEnum):
    """The exit status of a command. A warning does not change it.

    `launch` ends with the status of its job, and a command that Ctrl-C has ended with 130, as in a shell.
    """

    FINE = 0
    FOUND = 1
    """The command found what it looks for: an error, a misfit, a failure, a difference."""
    NOT_JUDGED = 2
    """The command was called wrongly, or cannot judge what it was given."""


class Stage(enum.Enum):
    """When a rule can be asked."""

    SCRIPT = "before the run, from its script"
    ENVIRONMENT = "in the environment that the job is to run in"
    JOB = "in the job"
    LOG = "after the run, from its log"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; what does not apply is empty."""

    code: str
    """The rule's."""
    severity: Severity
    found: str
    subject: str = ""
    expected: str = ""
    why: str = ""
    """What happens."""
    fix: str = ""
    """A command, or what to do where no command can do it."""
    override: str = ""
    source: tuple[str, ...] = ()
    """Where it was seen, or is documented."""
    where: str = ""
    """The line of a log, or of a file."""

    @property
    def refused(self) -> bool:
        """Whether it is shown to fail."""
        return self.severity is Severity.ERROR


@dataclass(frozen=True, slots=True)
class Rule(Generic[Subject]):
    """What may be wrong with a subject: a script, an environment, a job, or the text of a log."""

    code: str
    """Stable: it is in reports and in JSON."""
    ask: Callable[[Subject], Iterable[Finding]]
    stages: tuple[Stage, ...]
    about: str = field(default="", kw_only=True)
    """What is looked at, in a sentence; empty where the findings say it themselves."""


def ok(code: str, found: str) -> Finding:
    """It is as it should be."""
    return Finding(code, Severity.OK, found)


def skipped(code: str, found: str, expected: str = "") -> Finding:
    """It was not judged; `found` says why."""
    return Finding(code, Severity.SKIPPED, found, expected=expected)


def warning(code: str, found: str, *, why: str, fix: str, subject: str = "", expected: str = "") -> Finding:
    """It may fail."""
    return Finding(code, Severity.WARNING, found, subject, expected, why, fix)


def error(code: str, found: str, *, why: str, fix: str, subject: str = "", expected: str = "") -> Finding:
    """It fails."""
    return Finding(code, Severity.ERROR, found, subject, expected, why, fix)


def exit_status(findings: Iterable[Finding]) -> Status:
    """Return whether an error was found, or nothing could be judged."""
    severities = {finding.severity for finding in findings}
    if Severity.ERROR in severities:
        return Status.FOUND
    return Status.FINE if severities - {Severity.SKIPPED} else Status.NOT_JUDGED


def find(rules: Sequence[Rule[Subject]], subject: Subject, stage: Stage) -> Iterator[Finding]:
    """Yield what those rules find that can be asked at this stage."""
    for rule in rules:
        if stage in rule.stages:
            yield from rule.ask(subject)


def refusals(code: str, ask: Callable[[Subject], object], subject: Subject) -> Iterator[Finding]:
    """Yield the error that the job ends with as a finding; `ask` is the function that the job calls."""
    try:
        ask(subject)
    except VerlNpuError as refusal:
        yield Finding(
            code=code,
            severity=Severity.ERROR,
            subject=refusal.subject,
            expected=refusal.expected,
            found=refusal.found,
            why=_("verl-npu ends the job with {kind}, which expects {expected}").format(
                kind=type(refusal).__name__, expected=refusal.expected
            ),
            fix=refusal.fix,
            override=refusal.override,
        )
