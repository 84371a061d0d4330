"""Findings and rules: problems in a job, in its environment, or in its log.

A rule says at which stages it can be checked. A rule that depends only on the job's settings is checked both in the
job and, before the run, in its script: `verl-npu lint` refuses whatever the job would refuse.
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
    """How serious a finding is."""

    OK = "ok"
    WARNING = "warning"
    """It may fail, or it differs from upstream's documents."""
    ERROR = "error"
    """It is known to fail."""
    SKIPPED = "skipped"
    """It cannot be checked here, or need not be."""


class Status(enum.IntEnum):
    """The exit status of a command. A warning does not change it.

    `launch` ends with the status of its job, and a command that Ctrl-C has ended with 130, as in a shell.
    """

    FINE = 0
    FOUND = 1
    """The command found a problem: an error, a misfit, a failure, or a difference."""
    NOT_JUDGED = 2
    """The command was called wrongly, or cannot judge what it was given."""


class Stage(enum.Enum):
    """When a rule can be checked."""

    SCRIPT = "before the run, from its script"
    ENVIRONMENT = "in the environment that the job is to run in"
    JOB = "in the job"
    LOG = "after the run, from its log"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check; fields that do not apply are empty."""

    code: str
    """The code of the rule."""
    severity: Severity
    found: str
    subject: str = ""
    expected: str = ""
    why: str = ""
    """The consequence."""
    fix: str = ""
    """A command, or an instruction where no command can do it."""
    override: str = ""
    source: tuple[str, ...] = ()
    """Where the problem was seen, or is documented."""
    where: str = ""
    """The line of a log, or of a file."""

    @property
    def refused(self) -> bool:
        """Whether it is known to fail."""
        return self.severity is Severity.ERROR


@dataclass(frozen=True, slots=True)
class Rule(Generic[Subject]):
    """One check of a script, an environment, a job, or the text of a log."""

    code: str
    """Stable, because reports and JSON contain it."""
    ask: Callable[[Subject], Iterable[Finding]]
    stages: tuple[Stage, ...]
    about: str = field(default="", kw_only=True)
    """What the rule checks, in a sentence; empty if the findings say it themselves."""


def ok(code: str, found: str) -> Finding:
    """Return the finding that all is well."""
    return Finding(code, Severity.OK, found)


def skipped(code: str, found: str, expected: str = "") -> Finding:
    """Return the finding that something was not judged; `found` says why."""
    return Finding(code, Severity.SKIPPED, found, expected=expected)


def warning(code: str, found: str, *, why: str, fix: str, subject: str = "", expected: str = "") -> Finding:
    """Return the finding that something may fail."""
    return Finding(code, Severity.WARNING, found, subject, expected, why, fix)


def error(code: str, found: str, *, why: str, fix: str, subject: str = "", expected: str = "") -> Finding:
    """Return the finding that something fails."""
    return Finding(code, Severity.ERROR, found, subject, expected, why, fix)


def exit_status(findings: Iterable[Finding]) -> Status:
    """Return FOUND if there is an error, NOT_JUDGED if nothing was judged, and FINE otherwise."""
    severities = {finding.severity for finding in findings}
    if Severity.ERROR in severities:
        return Status.FOUND
    return Status.FINE if severities - {Severity.SKIPPED} else Status.NOT_JUDGED


def find(rules: Sequence[Rule[Subject]], subject: Subject, stage: Stage) -> Iterator[Finding]:
    """Yield the findings of the rules that can be checked at this stage."""
    for rule in rules:
        if stage in rule.stages:
            yield from rule.ask(subject)


def refusals(code: str, ask: Callable[[Subject], object], subject: Subject) -> Iterator[Finding]:
    """Yield the error that ends the job as a finding; `ask` is the function that the job calls."""
    try:
        ask(subject)
    except VerlNpuError as refusal:
        yield Finding(
            code=code,
            severity=Severity.ERROR,
            subject=refusal.subject,
            expected=refusal.expected,
            # Without `expected`, the error's `found` is a sentence.
            found=refusal.found if refusal.expected else _("that {sentence}").format(sentence=refusal.found),
            why=_("verl-npu ends the job with {kind}").format(kind=type(refusal).__name__),
            fix=refusal.fix,
            override=refusal.override,
        )
