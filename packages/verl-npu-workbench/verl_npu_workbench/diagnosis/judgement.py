"""Which of all errors in a log is the cause, and in which process it began.

An error that is passed on, and a rank that waits for another one, come after the cause, and are often many. So errors
are ordered by how much their text tells, and among equals the earliest is taken: by the time that CANN and torch_npu
write, where both have one, else by their place in the log.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_npu.errors import LogError
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
"""Steps after an error that show that the job survived it: one may already have been under way."""
_NAMED = (Precision.OWN, Precision.EXACT)
_NEAR = 3
"""Frames of a traceback, the last ones, by which a rule may tell where an error was raised."""
_WHOLE = (Kind.TRACEBACK, Kind.CANN)
"""Errors that count in a log that came to its end, or still grows; there a line alone may be anything."""


class Conclusion(enum.Enum):
    """What a log says."""

    CAUSE = "cause"
    """A rule names the cause."""
    CODE = "code"
    """There is a code that has many causes, and nothing that tells more."""
    CONSEQUENCE = "consequence"
    """The log has only what follows from an error elsewhere."""
    UNKNOWN = "unknown"
    """There is an error that no rule knows, or the log just ends: nothing says that the training came to its end."""
    NONE = "none"
    """The training came to its end, or still runs, and went on after all errors."""


@dataclass(frozen=True, slots=True)
class LoggedError:
    """An error of a log, and what is known about it."""

    event: Event
    rule: LogRule | None
    """The rule that matches; None if none does."""
    finding: Finding | None
    """What that rule says of it."""
    guess: Finding | None = None
    """What kind of error it is, if no rule knows it."""
    candidates: tuple[str, ...] = ()
    """What it may come of, the likeliest first, if its cause is not certain."""

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
    """The error where it began; None if there is none, which is Conclusion.UNKNOWN where the log just ends."""
    before: LoggedError | None
    """An error that no rule knows, and that came before the root."""
    followed: tuple[LoggedError, ...]
    """The errors that came with the root."""
    hints: tuple[LoggedError, ...]
    survived: tuple[LoggedError, ...]
    """Errors after which the job went on."""
    progress: Progress
    """How far the job came."""
    left_out: int = 0
    """Errors that are like very many others, and were not looked at."""

    @property
    def lines(self) -> int:
        """How many lines the log has."""
        return self.progress.lines

    @property
    def steps(self) -> int:
        """The last step that the log has."""
        return self.progress.last


@dataclass(frozen=True, slots=True)
class _Reading:
    """What one log says, before it is judged together with the others of its job."""

    progress: Progress
    errors: tuple[LoggedError, ...]
    """In the order of the log."""
    left_out: int = 0


def judge(
    source: Iterable[str],
    log: str = "",
    process: Process = DRIVER,
    rules: Sequence[LogRule] = RULES,
    growing: bool = False,
) -> Diagnosis:
    """Judge the lines of one log, which `growing` says is still being written."""
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
        # A line that only tells by a rule for any place is not asked about by those for errors, unless it is one.
        alone = event.kind is Kind.LINE and not looks_like_an_error(event.text)
        key = (alone, event.text, *event.frames[-_NEAR:])
        if key not in known:
            known[key] = _known(event, anywhere if alone else certain)
        errors.append(_error(event, known[key]))
    if all(each.event.kind is Kind.LINE and each.precision not in _NAMED for each in errors):
        errors += _said_last(progress, rules)
    return _Reading(progress, tuple(errors), reader.left_out)


def _error(event: Event, known: tuple[LogRule, Finding] | None) -> LoggedError:
    rule, finding = known or (None, None)
    return LoggedError(event, rule, finding, candidates=rule.candidates if rule else ())


def _guessed(root: LoggedError, rules: Sequence[LogRule]) -> LoggedError:
    """The root with what kind of error it is, if no rule knows it: of no other, because logs have many errors."""
    known = None if root.rule else _known(root.event, [each for each in rules if each.precision is Precision.GUESS])
    if known is None:
        return root
    kind, guess = known
    return dataclasses.replace(root, guess=guess, candidates=kind.candidates)


def _said_last(progress: Progress, rules: Sequence[LogRule]) -> list[LoggedError]:
    """What the end of a log means, if a rule knows it though no line of it looks like an error."""
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
    # What stands alone and is no more than a line that went by is not worth a word.
    survived = [each for each in survived if each.rule is not None or each.event.kind in _WHOLE]
    verdict, root = _root(errors, progress.clocks)
    if root is None:
        verdict = Conclusion.NONE if progress.ended or progress.growing else Conclusion.UNKNOWN
        return Diagnosis(verdict, None, None, (), hints, tuple(survived), progress, left_out)
    root = _by_torchrun(verdict, _with_the_next_line(root, errors), errors)
    before = next(
        (each for each in errors if each.rule is None and each is not root and _is_before(each, root)),
        None,
    )
    followed = tuple(each for each in errors if each is not root and each is not before)
    return Diagnosis(verdict, _guessed(root, rules), before, followed, hints, tuple(survived), progress, left_out)


_BESIDE = 2
"""Lines after an error within which another one of the same rule tells more of it."""


def _with_the_next_line(root: LoggedError, errors: Sequence[LoggedError]) -> LoggedError:
    """The root with the process that a line beside it names, where the root itself names none."""
    if root.event.process == DRIVER and root.rule is not None:
        for each in errors:
            near = each.event.log == root.event.log and 0 < each.event.line - root.event.last <= _BESIDE
            if near and each.rule is root.rule and each.event.process.pid:
                root.event.process = each.event.process
                break
    return root


def _by_torchrun(verdict: Conclusion, root: LoggedError, errors: Sequence[LoggedError]) -> LoggedError:
    """The root with what torchrun says of the rank that failed first: its ranks write to one log, most of them without
    a word about which one it is."""
    found = failed_first([each.event for each in errors])
    if found is None:
        return root
    event, process = found
    if (
        verdict is Conclusion.CONSEQUENCE
        and root.event.process.rank
        and process.rank not in ("", root.event.process.rank)
    ):
        # That rank lost the connection to the one that failed.
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
    """When an error happened by the clock of the host that the log is of, in seconds."""
    moment = seconds(error.event.moment)
    process = error.event.process
    return None if moment is None else moment - clocks.ahead(process.ip or clocks.hosts.get(process.pid, ""))


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
    if one.event.kind is Kind.LINE:
        return False
    return one.event.log == other.event.log and one.event.line < other.event.line and not one.event.passed_on


def _known(event: Event, rules: Sequence[LogRule]) -> tuple[LogRule, Finding] | None:
    text = event.text
    frames = "\n".join(event.frames[-_NEAR:])
    # Asked once, and only if a rule wants to know.
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
    """Judge all logs of a job together.

    Raises:
        LogError: a log cannot be read, or a folder holds none.
    """
    files = [file for each in paths for file in _files(each)]
    reports = [faults_of(file) for file in files]
    if all(faults == () for faults in reports):
        raise LogError(
            subject=str(files[0]),
            expected=_("a report of ascend-fd that names a fault, or the log of the job beside it"),
            found=_("a report that names none"),
            fix=_("name what the job printed too"),
        )
    return _conclude([_opened(*each, rules) for each in zip(files, reports, strict=True)], rules)


def _opened(path: Path, faults: Sequence[Fault] | None, rules: Sequence[LogRule]) -> _Reading:
    """Read a log, or take the faults of a report of ascend-fd."""
    if faults is not None:
        return _Reading(Progress(log=str(path), lines=len(faults)), tuple(_reported(each, rules) for each in faults))
    try:
        with opened(path) as source:
            return _read(parts_of(source), str(path), process_of_file(path), rules, is_being_written(path))
    except FileNotFoundError:
        # It was there a moment ago: a job that goes on cleans up.
        return _Reading(Progress(log=str(path)), ())
    except NoLog as error:
        raise _refusal(path, str(error)) from None
    except UNREADABLE as error:
        raise _refusal(path, getattr(error, "strerror", None) or str(error)) from None


def _reported(fault: Fault, rules: Sequence[LogRule]) -> LoggedError:
    """A fault of ascend-fd's report: by a rule of ours if one tells as much of it, else as ascend-fd says it."""
    event, theirs = fault
    known = _known(event, [each for each in rules if each.precision <= theirs.precision])
    return _error(event, known or (theirs, next(iter(theirs.ask(event.text)))))


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        if path != STDIN and not path.exists():
            raise _refusal(path, _("no such file"))
        yield path
        return
    # os.walk passes over a folder that vanishes meanwhile, or that is another user's; a job goes on, and cleans up.
    names = (Path(folder, name) for folder, _unused, names in os.walk(path) for name in names)
    files = sorted(file for file in names if any(map(file.match, _FILES)) and file.is_file())
    if not files:
        raise _refusal(path, _("a folder without one"))
    yield from files


def _refusal(path: Path, found: str) -> LogError:
    return LogError(
        subject=str(path),
        expected=_("the log of a job, or a folder of logs"),
        found=found,
        fix=_("name what the job printed, Ray's folder of logs, or CANN's (~/ascend/log)"),
    )
