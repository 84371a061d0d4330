"""Finds the root among the errors of a log, and the process in which the failure began.

Once an error has occurred, many others usually follow: other processes pass it on, and other ranks report that they
waited in vain. Errors are therefore ordered by how precisely their text identifies the cause. Among equally precise
errors, the earliest is chosen. If both errors have a timestamp from CANN or torch_npu, the timestamps determine which
is earlier; otherwise, their order in the log does.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_npu.errors import SourceError
from verl_npu.findings import Finding
from verl_npu.language import gettext as _

from ..logs.clocks import Clocks, seconds
from ..logs.files import STDIN, UNREADABLE, NoLog, is_being_written, opened
from ..logs.lines import DRIVER, Process, lines_of, parts_of, process_of_file
from .ascend_fd import Fault, faults_of
from .event import Event, Kind, Reader, failed_first, looks_like_an_error
from .owner import owner_of
from .progress import Progress, joined
from .rules import RULES, LogRule, Precision

_FILES = ("*.log", "*.out", "*.err", "*.txt", "*.log.gz", "diag_report.json")
_WENT_ON = 2
"""The number of steps after an error that show that the job survived it. One step is not enough, because it may
already have been running."""
_NAMED = (Precision.OWN, Precision.EXACT)
_NEAR = 3
"""The number of frames at the end of a traceback that a rule searches for the place where the error was raised."""
_WHOLE = (Kind.TRACEBACK, Kind.CANN)
"""The kinds of errors that are reported in the log of a job that has finished or still runs. In such a log, a single
line that looks like an error may mean anything."""


class Conclusion(enum.Enum):
    """The conclusion drawn from a log."""

    CAUSE = "cause"
    """A rule names the cause."""
    CODE = "code"
    """The log has an error code that has many causes, and nothing that narrows them down."""
    CONSEQUENCE = "consequence"
    """The log shows only the consequences of an error that happened elsewhere."""
    UNKNOWN = "unknown"
    """No rule matches the error, or the log stops abruptly without saying that the training finished."""
    NONE = "none"
    """The training finished or still runs, and it survived all errors."""


@dataclass(frozen=True, slots=True)
class LoggedError:
    """An error from a log, with the rule that matched the error and the resulting finding."""

    event: Event
    rule: LogRule | None
    """The matching rule, or None if no rule matches."""
    finding: Finding | None
    """The finding of that rule."""
    guess: Finding | None = None
    """A guess at the kind of the error, if no rule matches."""
    candidates: tuple[str, ...] = ()
    """The codes of the likely causes if the cause is not certain, the likeliest first."""

    @property
    def precision(self) -> Precision | None:
        """The precision of the rule that matches the error, or None if no rule matches."""
        return self.rule.precision if self.rule else None

    @property
    def name(self) -> str:
        """The code of the rule that matches the error, or an empty string if no rule matches."""
        return self.rule.code if self.rule else ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The diagnosis of a job from one or more logs."""

    verdict: Conclusion
    root: LoggedError | None
    """The error that caused the others; None if there is none. If the log stops abruptly without an error, the verdict
    is Conclusion.UNKNOWN."""
    before: LoggedError | None
    """An error that was logged before the root and that no rule matches."""
    followed: tuple[LoggedError, ...]
    """The other errors of the failure, besides the root."""
    hints: tuple[LoggedError, ...]
    survived: tuple[LoggedError, ...]
    """Errors after which the job went on."""
    progress: Progress
    """The progress of the job."""
    left_out: int = 0
    """The number of errors that were not examined because many similar ones exist."""

    @property
    def lines(self) -> int:
        """The number of lines of the log."""
        return self.progress.lines

    @property
    def steps(self) -> int:
        """The number of the last step in the log."""
        return self.progress.last


@dataclass(frozen=True, slots=True)
class _Reading:
    """The content of one log, before it is judged together with the job's other logs."""

    progress: Progress
    errors: tuple[LoggedError, ...]
    """The errors, in the order of the log."""
    left_out: int = 0


def judge(
    source: Iterable[str],
    log: str = "",
    process: Process = DRIVER,
    rules: Sequence[LogRule] = RULES,
    growing: bool = False,
) -> Diagnosis:
    """Diagnose the lines of one log. `growing` is true if the log is still being written."""
    return _conclude([_read(source, log, process, rules, growing)], rules)


def _read(
    source: Iterable[str], log: str, process: Process, rules: Sequence[LogRule], growing: bool = False
) -> _Reading:
    certain = [each for each in rules if each.precision is not Precision.GUESS]
    anywhere = [each for each in certain if each.anywhere]
    progress = Progress(log=log, growing=growing)
    reader = Reader(log, [part for each in anywhere for part in each.alternatives])
    events = reader.read(progress.watch(lines_of(source, process)))
    known: dict[tuple[object, ...], tuple[LogRule, Finding] | None] = {}
    errors = []
    for event in events:
        # A line that does not look like an error is only tried with the rules that match anywhere.
        alone = event.kind is Kind.LINE and not looks_like_an_error(event.text)
        key = (alone, event.text, *event.frames[-_NEAR:])
        if key not in known:
            known[key] = _known(event, anywhere if alone else certain)
        errors.append(_error(event, known[key]))
    if all(each.event.kind is Kind.LINE and each.precision not in _NAMED for each in errors):
        errors += _error_at_end(progress, rules)
    return _Reading(progress, tuple(errors), reader.left_out)


def _error(event: Event, known: tuple[LogRule, Finding] | None) -> LoggedError:
    rule, finding = known or (None, None)
    return LoggedError(event, rule, finding, candidates=rule.candidates if rule else ())


def _guessed(root: LoggedError, rules: Sequence[LogRule]) -> LoggedError:
    """Return the root, with a guess at its kind if no rule matches it. Other errors get no guess, because there can be
    many of them."""
    known = None if root.rule else _known(root.event, [each for each in rules if each.precision is Precision.GUESS])
    if known is None:
        return root
    kind, guess = known
    return dataclasses.replace(root, guess=guess, candidates=kind.candidates)


def _error_at_end(progress: Progress, rules: Sequence[LogRule]) -> list[LoggedError]:
    """Return the error at the end of a log if a rule matches the last lines, although no line looks like an error."""
    last = [line for line in progress.last_lines if not line.ordinary]
    if not last:
        return []
    event = Event(Kind.LINE, last[-1].process, last[0].number, progress.log, [line.text for line in last])
    telling = (*_NAMED, Precision.CODE)
    known = _known(event, [each for each in rules if each.precision in telling])
    return [_error(event, known)] if known else []


def _conclude(readings: Sequence[_Reading], rules: Sequence[LogRule]) -> Diagnosis:
    """Choose the root among the errors of all logs."""
    progress = joined([each.progress for each in readings])
    left_out = sum(each.left_out for each in readings)
    found: list[LoggedError] = []
    survived: list[LoggedError] = []
    for reading in readings:
        for each in reading.errors:
            if each.rule is None and each.event.kind not in _WHOLE and (progress.ended or progress.growing):
                continue
            went_on = each.precision is not Precision.HINT and reading.progress.survived(each.event.line, _WENT_ON)
            (survived if went_on else found).append(each)
    errors = [each for each in found if each.precision is not Precision.HINT]
    hints = tuple(each for each in found if each.precision is Precision.HINT)
    # A single line that no rule matches and that the job survived is not worth reporting.
    survived = [each for each in survived if each.rule is not None or each.event.kind in _WHOLE]
    verdict, root = _root(errors, progress.clocks)
    if root is None:
        verdict = Conclusion.NONE if progress.ended or progress.growing else Conclusion.UNKNOWN
        return Diagnosis(verdict, None, None, (), hints, tuple(survived), progress, left_out)
    root = _completed_by_torchrun(verdict, _completed_by_next_line(root, errors), errors)
    before = next(
        (each for each in errors if each.rule is None and each is not root and _is_before(each, root)),
        None,
    )
    followed = tuple(each for each in errors if each is not root and each is not before)
    return Diagnosis(verdict, _guessed(root, rules), before, followed, hints, tuple(survived), progress, left_out)


_BESIDE = 2
"""The number of lines below an error where another match of the same rule can add details to the error."""


def _completed_by_next_line(root: LoggedError, errors: Sequence[LoggedError]) -> LoggedError:
    """If the root names no process but the line below it does, return the root with that process."""
    if root.event.process == DRIVER and root.rule is not None:
        for each in errors:
            near = each.event.log == root.event.log and 0 < each.event.line - root.event.last <= _BESIDE
            if near and each.rule is root.rule and each.event.process.pid:
                root.event.process = each.event.process
                break
    return root


def _completed_by_torchrun(verdict: Conclusion, root: LoggedError, errors: Sequence[LoggedError]) -> LoggedError:
    """Return the root with the rank that, according to torchrun, failed first.

    All ranks of torchrun write to one log, and most lines do not say which rank wrote them.
    """
    found = failed_first([each.event for each in errors])
    if found is None:
        return root
    event, process = found
    if (
        verdict is Conclusion.CONSEQUENCE
        and root.event.process.rank
        and process.rank not in ("", root.event.process.rank)
    ):
        # The root's rank only lost the connection to the one that failed.
        root = next(each for each in errors if each.event is event)
        event.process = process
    elif root.event.process == DRIVER:
        root.event.process = process
    return root


def _root(errors: Sequence[LoggedError], clocks: Clocks) -> tuple[Conclusion, LoggedError | None]:
    named = [each for each in errors if each.precision in _NAMED]
    if named:
        first = _first(named, clocks)
        return Conclusion.CAUSE, _as_raised(first, named)
    vague = [
        each
        for each in errors
        if (each.rule is None and each.event.kind is not Kind.LINE) or each.precision is Precision.CODE
    ]
    if vague:
        first = _as_raised(_first(vague, clocks), vague)
        return (Conclusion.CODE if first.rule else Conclusion.UNKNOWN), first
    for precision in (Precision.SYMPTOM, Precision.ECHO):
        followed = [each for each in errors if each.precision is precision]
        if followed:
            return Conclusion.CONSEQUENCE, _first(followed, clocks)
    return (Conclusion.UNKNOWN, errors[0]) if errors else (Conclusion.NONE, None)


def _first(findings: Sequence[LoggedError], clocks: Clocks) -> LoggedError:
    first, began = findings[0], _moment(findings[0], clocks)
    for each in findings[1:]:
        moment = _moment(each, clocks)
        if began is not None and moment is not None and moment < began:
            first, began = each, moment
    return first


def _moment(error: LoggedError, clocks: Clocks) -> float | None:
    """Return the time of an error in seconds, converted to the clock of the log's own host, or None if the time is
    unknown."""
    moment = seconds(error.event.moment)
    process = error.event.process
    host = process.ip or clocks.hosts.get(process.pid, "")
    return None if moment is None or host in clocks.reset else moment - clocks.ahead(host)


def _as_raised(first: LoggedError, findings: Sequence[LoggedError]) -> LoggedError:
    """If the first error is only Ray's copy, return the original error as its own process wrote it."""
    if not first.event.passed_on:
        return first
    for each in findings:
        same = each.event.process.pid == first.event.process.pid and each.name == first.name
        if same and not each.event.passed_on and (each.rule is not None or each.event.error == first.event.error):
            return each
    return first


def _is_before(one: LoggedError, other: LoggedError) -> bool:
    if one.event.kind is Kind.LINE:
        return False
    return one.event.log == other.event.log and one.event.line < other.event.line and not one.event.passed_on


def _known(event: Event, rules: Sequence[LogRule]) -> tuple[LogRule, Finding] | None:
    text = event.text
    frames = "\n".join(event.frames[-_NEAR:])
    # Computed at most once, and only if a rule needs it.
    owner = functools.cache(lambda: owner_of(event))
    known = [
        (rule, finding)
        for rule in rules
        if rule.raised_in is None or rule.raised_in.search(frames)
        if not rule.owners or owner() in rule.owners
        for finding in rule.ask(text)
    ]
    return min(known, key=lambda each: each[0].precision, default=None)


def diagnose(paths: Sequence[Path], rules: Sequence[LogRule] = RULES) -> Diagnosis:
    """Diagnose all logs of a job together.

    Raises:
        SourceError: a log cannot be read, or a folder contains no logs.
    """
    files = [file for each in paths for file in _files(each)]
    reports = [faults_of(file) for file in files]
    if all(faults == () for faults in reports):
        raise SourceError(
            subject=str(files[0]),
            expected=_("an ascend-fd report that identifies a fault"),
            found=_("a report without a fault"),
            fix=_("specify the job's log in addition to the report"),
        )
    return _conclude([_opened(*each, rules) for each in zip(files, reports, strict=True)], rules)


def _opened(path: Path, faults: Sequence[Fault] | None, rules: Sequence[LogRule]) -> _Reading:
    """Read a log, or take the faults from an ascend-fd report."""
    if faults is not None:
        return _Reading(Progress(log=str(path), lines=len(faults)), tuple(_reported(each, rules) for each in faults))
    try:
        with opened(path) as source:
            return _read(parts_of(source), str(path), process_of_file(path), rules, is_being_written(path))
    except FileNotFoundError:
        # It existed a moment ago: a running job cleans up.
        return _Reading(Progress(log=str(path)), ())
    except NoLog as error:
        raise _refusal(path, str(error)) from None
    except UNREADABLE as error:
        raise _refusal(path, getattr(error, "strerror", None) or str(error)) from None


def _reported(fault: Fault, rules: Sequence[LogRule]) -> LoggedError:
    """Return a fault with verl-npu's rule if that rule is at least as precise, otherwise with ascend-fd's
    explanation."""
    event, theirs = fault
    known = _known(event, [each for each in rules if each.precision <= theirs.precision])
    return _error(event, known or (theirs, next(iter(theirs.ask(event.text)))))


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        if path != STDIN and not path.exists():
            raise _refusal(path, _("no such file"))
        yield path
        return
    # os.walk skips folders that a running job removes meanwhile, and folders of other users.
    names = (Path(folder, name) for folder, _unused, names in os.walk(path) for name in names)
    files = sorted(file for file in names if any(map(file.match, _FILES)) and file.is_file())
    if not files:
        raise _refusal(path, _("a folder without logs"))
    yield from files


def _refusal(path: Path, found: str) -> SourceError:
    return SourceError(
        subject=str(path),
        expected=_("the log of a job, or a folder of logs"),
        found=found,
        fix=_("specify the job's output, Ray's log folder, or CANN's log folder (~/ascend/log)"),
    )
