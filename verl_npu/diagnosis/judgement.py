"""Which of all errors in a log is the cause, and in which process it began.

An error that is passed on, and a rank that waits for another one, come after the cause, and are often many. So errors
are ordered by how much their text tells, and among equals the earliest is taken: by the time that CANN and torch_npu
write, where both have one, else by their place in the log.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from .event import Event, Kind, Reader
from .line import DRIVER, Line, Process, lines_of
from .rule import Match, Precision, Rule
from .rules import RULES

__all__ = ["Diagnosis", "Finding", "Verdict", "alternatives", "conclude", "judge"]

_STEP = re.compile(r"step:(?P<step>\d+) - ")
_END = ("Training Progress: 100%", "Final validation metrics:")
_WENT_ON = 2
"""Steps after an error that show that the job survived it: one may already have been under way."""
_NAMED = (Precision.OWN, Precision.EXACT)


class Verdict(enum.Enum):
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
class Finding:
    """An error, and what is known about it."""

    event: Event
    match: Match | None

    @property
    def precision(self) -> Precision | None:
        """How much is known; None if no rule matches."""
        return self.match.rule.precision if self.match else None

    @property
    def name(self) -> str:
        """The rule that matches; empty if none does."""
        return self.match.rule.name if self.match else ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What one or several logs of a job say."""

    verdict: Verdict
    root: Finding | None
    before: Finding | None
    """An error that no rule knows, and that came before the root."""
    followed: tuple[Finding, ...]
    """The errors that came with the root."""
    hints: tuple[Finding, ...]
    survived: tuple[Finding, ...]
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
        return self.ended or sum(number > line for number in self.steps) >= _WENT_ON


def judge(source: Iterable[str], log: str = "", process: Process = DRIVER, rules: Sequence[Rule] = RULES) -> Diagnosis:
    """Judge the lines of one log."""
    anywhere = [each for each in rules if each.anywhere]
    progress = _Progress()
    events = Reader(log, _any_of(anywhere)).read(progress.watch(lines_of(source, process)))
    found: list[Finding] = []
    survived: list[Finding] = []
    for event in events:
        match = _best(event, anywhere if event.kind is Kind.LINE else rules)
        if match is None and event.kind in (Kind.LINE, Kind.BARE):
            continue
        finding = Finding(event, match)
        went_on = finding.precision is not Precision.HINT and progress.survived(event.line)
        (survived if went_on else found).append(finding)
    return conclude(found, survived, progress.lines, progress.last)


def conclude(found: Sequence[Finding], survived: Sequence[Finding], lines: int, steps: int) -> Diagnosis:
    """Choose the root among errors, which are in the order of the log."""
    errors = [each for each in found if each.precision is not Precision.HINT]
    hints = tuple(each for each in found if each.precision is Precision.HINT)
    verdict, root = _root(errors)
    if root is None:
        return Diagnosis(Verdict.NONE, None, None, (), hints, tuple(survived), lines, steps)
    before = next(
        (each for each in errors if each.match is None and each is not root and _is_before(each, root)),
        None,
    )
    followed = tuple(each for each in errors if each is not root and each is not before)
    return Diagnosis(verdict, root, before, followed, hints, tuple(survived), lines, steps)


def _root(errors: Sequence[Finding]) -> tuple[Verdict, Finding | None]:
    named = [each for each in errors if each.precision in _NAMED]
    if named:
        first = _first(named)
        return Verdict.CAUSE, _as_raised(first, named)
    vague = [each for each in errors if each.precision in (None, Precision.CODE)]
    if vague:
        first = _as_raised(_first(vague), vague)
        return (Verdict.CODE if first.match else Verdict.UNKNOWN), first
    return Verdict.CONSEQUENCE, _first(errors) if errors else None


def _first(findings: Sequence[Finding]) -> Finding:
    first = findings[0]
    for each in findings[1:]:
        if first.event.moment and each.event.moment and each.event.moment < first.event.moment:
            first = each
    return first


def _as_raised(first: Finding, findings: Sequence[Finding]) -> Finding:
    """The same error as the process wrote it that raised it, if Ray's copy of it came first in the log."""
    if not first.event.passed_on:
        return first
    for each in findings:
        same = each.event.process.pid == first.event.process.pid and each.name == first.name
        if same and not each.event.passed_on and (each.match is not None or each.event.error == first.event.error):
            return each
    return first


def _is_before(one: Finding, other: Finding) -> bool:
    return one.event.log == other.event.log and one.event.line < other.event.line and not one.event.passed_on


def _best(event: Event, rules: Sequence[Rule]) -> Match | None:
    text = event.text
    matches = [match for match in (Match.of(rule, text) for rule in rules) if match is not None]
    return min(matches, key=lambda match: match.rule.precision, default=None)


def _any_of(rules: Sequence[Rule]) -> Callable[[str], bool]:
    """A quick test of a line for all rules at once: nearly all lines of a log match none.

    Each alternative is searched by itself: most begin with a fixed text, which Python then finds without trying the
    pattern at every character.
    """
    searches = [re.compile(part).search for rule in rules for part in alternatives(rule.pattern.pattern)]
    return lambda text: any(search(text) for search in searches)


def alternatives(pattern: str) -> list[str]:
    """Split a pattern at the bars that are in no group and no class; one with flags stays whole."""
    if pattern.startswith("(?"):
        return [pattern]
    depth, parts, part = 0, [], ""
    for piece in re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", pattern, re.DOTALL):
        depth += (piece == "(") - (piece == ")")
        if piece == "|" and not depth:
            parts.append(part)
            part = ""
        else:
            part += piece
    return [*parts, part]
