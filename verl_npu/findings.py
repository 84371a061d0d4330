"""Findings and rules. A finding is a problem in a job, in its environment, or in its log, and rules yield findings.

A rule names the stages when it can be checked. A rule that needs only the job's settings is checked in the job, and
also in its launch script before the run. So `verl-npu lint` rejects everything that the job would reject.
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
    ADVICE = "advice"
    """The job works, and a published measurement says that it can be faster."""
    WARNING = "warning"
    """The job may fail, or it differs from upstream's documentation."""
    ERROR = "error"
    """The job is known to fail."""
    SKIPPED = "skipped"
    """The rule cannot be checked here, or need not be."""


class Status(enum.IntEnum):
    """The exit status of a command. Warnings do not change it.

    `launch` returns the status of its job. A command that is interrupted with Ctrl-C returns 130, as in a shell.
    """

    FINE = 0
    FOUND = 1
    """The command found a problem: an error, a misfit, a failure, or a difference."""
    NOT_JUDGED = 2
    """The arguments are invalid, or the command cannot judge its input."""


class Stage(enum.Enum):
    """A stage at which a rule can be checked."""

    SCRIPT = "before the run, from its script"
    ENVIRONMENT = "in the environment that the job is to run in"
    JOB = "in the job"
    LOG = "after the run, from its log"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check. Fields that do not apply are empty."""

    code: str
    """The code of the rule that was checked."""
    severity: Severity
    found: str
    subject: str = ""
    expected: str = ""
    why: str = ""
    """The consequence of the problem."""
    fix: str = ""
    """A command that fixes the problem. If no command can do it, an instruction."""
    override: str = ""
    source: tuple[str, ...] = ()
    """The places where the problem was seen or is documented."""
    where: str = ""
    """A line of a log or of a file."""

    @property
    def refused(self) -> bool:
        """Whether this finding means that the job is known to fail."""
        return self.severity is Severity.ERROR


@dataclass(frozen=True, slots=True)
class Rule(Generic[Subject]):
    """One check of a launch script, an environment, a job, or the text of a log."""

    code: str
    """The code of the rule. It never changes, because reports and JSON contain it."""
    ask: Callable[[Subject], Iterable[Finding]]
    stages: tuple[Stage, ...]
    about: str = field(default="", kw_only=True)
    """A sentence about what the rule checks. Empty if the findings themselves say it."""


def ok(code: str, found: str) -> Finding:
    """Create a finding that reports that there is no problem."""
    return Finding(code, Severity.OK, found)


def skipped(code: str, found: str, expected: str = "") -> Finding:
    """Create a finding for something that was not judged. `found` gives the reason."""
    return Finding(code, Severity.SKIPPED, found, expected=expected)


def warning(code: str, found: str, *, why: str, fix: str, subject: str = "", expected: str = "") -> Finding:
    """Create a finding with the severity WARNING, for a problem that may cause a failure."""
    return Finding(code, Severity.WARNING, found, subject, expected, why, fix)


def error(code: str, found: str, *, why: str, fix: str, subject: str = "", expected: str = "") -> Finding:
    """Create a finding with the severity ERROR, for a problem that is known to cause a failure."""
    return Finding(code, Severity.ERROR, found, subject, expected, why, fix)


def exit_status(findings: Iterable[Finding]) -> Status:
    """Return FOUND if one of the findings is an error, NOT_JUDGED if nothing could be judged, and FINE otherwise."""
    severities = {finding.severity for finding in findings}
    if Severity.ERROR in severities:
        return Status.FOUND
    return Status.FINE if severities - {Severity.SKIPPED} else Status.NOT_JUDGED


def find(rules: Sequence[Rule[Subject]], subject: Subject, stage: Stage) -> Iterator[Finding]:
    """Check `subject` with those rules that can be checked at this stage, and yield the findings."""
    for rule in rules:
        if stage in rule.stages:
            yield from rule.ask(subject)


def refusals(code: str, ask: Callable[[Subject], object], subject: Subject) -> Iterator[Finding]:
    """Call `ask`, a check that the job itself also makes. If the check raises the error that would end the job, yield
    the error as a finding."""
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
