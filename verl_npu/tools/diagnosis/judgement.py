"""Which of all errors in a log is the cause, and in which process it began.

An error that is passed on, and a rank that waits for another one, come after the cause, and are often many. So errors
are ordered by how much their text tells, and among equals the earliest is taken: by the time that CANN and torch_npu
write, where both have one, else by their place in the log.
"""

from __future__ import annotations

import bisect
import enum
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import LogError
from ...findings import Finding
from ..logs.lines import DRIVER, Line, Process, lines_of, parts_of, process_of_file
from .event import Event, Kind, Reader
from .rules import RULES, LogRule, Precision

_STEP = re.compile(r"step:(?P<step>\d{1,15}) - ")
_END = ("Training Progress: 100%", "Final validation metrics:")
_FILES = ("*.log", "*.out", "*.err", "*.txt")
_WENT_ON = 2
"""Steps after an error that show that the job survived it: one may already have been under way."""
_NAMED = (Precision.OWN, Precision.EXACT)


class Conclusion(enum.Enum):
    """What a log says."""

    CAUSE = "cause"
    """A rule names the cause."""
    CODE = "code"
    """There is a code that has many causes, and nothing that tells more."""
    CONSEQUENCE = "consequence"
    """The log has only what follows from an error elsewhere."""
    UNKNOWN = "unknown"
    """There is an error that no rule knows."""
    NONE = "none"
    """There is no error, or the job went on after all of them."""


@dataclass(frozen=True, slots=True)
class LoggedError:
    """An error of a log, and what is known about it."""

    event: Event
    rule: LogRule | None
    """The rule that matches; None if none does."""
    finding: Finding | None
    """What that rule says of it."""

    @property
    def precision(self) -> Precision | None:
        """How much is known; None if no rule matches."""
        return self.rule.precision if self.rule else None

    @property
    def name(self) -> str:
        """The code of the rule that matches; empty if none does."""
        return self.rule.code if self.rule else ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What one or several logs of a job say."""

    verdict: Conclusion
    root: LoggedError | None
    before: LoggedError | None
    """An error that no rule knows, and that came before the root."""
    followed: tuple[LoggedError, ...]
    """The errors that came with the root."""
    hints: tuple[LoggedError, ...]
    survived: tuple[LoggedError, ...]
    """Errors after which the job went on."""
    lines: int
    steps: int
    """The last step that the log has."""


@dataclass(slots=True)
class _Progress:
    """How far the job came, by the lines of its console."""

    lines: int = 0
    last: int = 0
    steps: list[int] = field(default_factory=list)
    """The lines of steps."""
    ended: bool = False
    """A line says that all steps are done."""

    def watch(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Pass the lines through, and note what they say of steps."""
        for line in lines:
            self.lines += 1
            found = _STEP.search(line.text)
            if found:
                self.last = max(self.last, int(found["step"]))
                self.steps.append(line.number)
            self.ended = self.ended or any(each in line.text for each in _END)
            yield line

    def survived(self, line: int) -> bool:
        """Whether the job went on after an error in this line."""
        return self.ended or len(self.steps) - bisect.bisect_right(self.steps, line) >= _WENT_ON


def judge(
    source: Iterable[str], log: str = "", process: Process = DRIVER, rules: Sequence[LogRule] = RULES
) -> Diagnosis:
    """Judge the lines of one log."""
    anywhere = [each for each in rules if each.anywhere]
    progress = _Progress()
    events = Reader(log, _any_of(anywhere)).read(progress.watch(lines_of(source, process)))
    found: list[LoggedError] = []
    survived: list[LoggedError] = []
    for event in events:
        known = _known(event, anywhere if event.kind is Kind.LINE else rules)
        if known.rule is None and event.kind in (Kind.LINE, Kind.BARE):
            continue
        went_on = known.precision is not Precision.HINT and progress.survived(event.line)
        (survived if went_on else found).append(known)
    return _conclude(found, survived, progress.lines, progress.last)


def _conclude(found: Sequence[LoggedError], survived: Sequence[LoggedError], lines: int, steps: int) -> Diagnosis:
    """Choose the root among errors, which are in the order of the log."""
    errors = [each for each in found if each.precision is not Precision.HINT]
    hints = tuple(each for each in found if each.precision is Precision.HINT)
    verdict, root = _root(errors)
    if root is None:
        return Diagnosis(Conclusion.NONE, None, None, (), hints, tuple(survived), lines, steps)
    before = next(
        (each for each in errors if each.rule is None and each is not root and _is_before(each, root)),
        None,
    )
    followed = tuple(each for each in errors if each is not root and each is not before)
    return Diagnosis(verdict, root, before, followed, hints, tuple(survived), lines, steps)


def _root(errors: Sequence[LoggedError]) -> tuple[Conclusion, LoggedError | None]:
    named = [each for each in errors if each.precision in _NAMED]
    if named:
        first = _first(named)
        return Conclusion.CAUSE, _as_raised(first, named)
    vague = [each for each in errors if each.precision in (None, Precision.CODE)]
    if vague:
        first = _as_raised(_first(vague), vague)
        return (Conclusion.CODE if first.rule else Conclusion.UNKNOWN), first
    return Conclusion.CONSEQUENCE, _first(errors) if errors else None


def _first(findings: Sequence[LoggedError]) -> LoggedError:
    first = findings[0]
    for each in findings[1:]:
        if first.event.moment and each.event.moment and each.event.moment < first.event.moment:
            first = each
    return first


def _as_raised(first: LoggedError, findings: Sequence[LoggedError]) -> LoggedError:
    """The same error as the process wrote it that raised it, if Ray's copy of it came first in the log."""
    if not first.event.passed_on:
        return first
    for each in findings:
        same = each.event.process.pid == first.event.process.pid and each.name == first.name
        if same and not each.event.passed_on and (each.rule is not None or each.event.error == first.event.error):
            return each
    return first


def _is_before(one: LoggedError, other: LoggedError) -> bool:
    return one.event.log == other.event.log and one.event.line < other.event.line and not one.event.passed_on


def _known(event: Event, rules: Sequence[LogRule]) -> LoggedError:
    text = event.text
    known = [LoggedError(event, rule, finding) for rule in rules for finding in rule.ask(text)]
    return min(known, key=lambda each: each.rule.precision if each.rule else 0, default=LoggedError(event, None, None))


def _any_of(rules: Sequence[LogRule]) -> Callable[[str], bool]:
    """A quick test of a line for all rules at once: nearly all lines of a log match none."""
    searches = [re.compile(part).search for rule in rules for part in rule.alternatives]
    return lambda text: any(search(text) for search in searches)


def diagnose(paths: Sequence[Path], rules: Sequence[LogRule] = RULES) -> Diagnosis:
    """Judge all logs of a job together.

    Raises:
        LogError: a log cannot be read, or a folder holds none.
    """
    found: list[LoggedError] = []
    survived: list[LoggedError] = []
    lines = steps = 0
    for path in [file for each in paths for file in _files(each)]:
        one = _judged(path, rules)
        own = [*filter(None, (one.root, one.before)), *one.followed, *one.hints]
        found += sorted(own, key=lambda each: each.event.line)
        survived += one.survived
        lines += one.lines
        steps = max(steps, one.steps)
    return _conclude(found, survived, lines, steps)


def _judged(path: Path, rules: Sequence[LogRule]) -> Diagnosis:
    try:
        with path.open(encoding="utf-8", errors="replace") as source:
            if stat.S_ISCHR(os.fstat(source.fileno()).st_mode) and not source.isatty():
                raise _refusal(path, "a device, which may have no end")
            return judge(parts_of(source), str(path), process_of_file(path), rules)
    except OSError as error:
        raise _refusal(path, error.strerror or str(error)) from None


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    files = sorted({file for pattern in _FILES for file in path.rglob(pattern) if file.is_file()})
    if not files:
        raise _refusal(path, "a folder without one")
    yield from files


def _refusal(path: Path, found: str) -> LogError:
    return LogError(
        subject=str(path),
        expected="the log of a job, or a folder of logs",
        found=found,
        fix="name what the job printed, Ray's folder of logs, or CANN's (~/ascend/log)",
    )
