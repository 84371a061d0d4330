"""One text to attach to a report: environment, states, what was found and the lines around it, without names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from ...findings import Finding, Severity
from ..logs.files import opened
from ..logs.lines import parts_of, uncoloured
from .judgement import Diagnosis, LoggedError
from .redaction import Redaction

_BEFORE, _AFTER = 20, 60
"""Lines of a log around an error."""
_LONGEST = 600
"""Characters of a line."""
_MOST_ERRORS = 5


def render(findings: Sequence[Finding], said: Diagnosis | None, states: Mapping[str, str], redact: Redaction) -> str:
    """Return the text; without a log, it is about the environment alone."""
    parts = [_section("environment", _environment(findings))]
    if states:
        parts.append(
            _section("verl-npu's features, by the log", (f"{name}: {state}" for name, state in states.items()))
        )
    if said is not None:
        parts.append(_section("diagnosis", _diagnosis(said)))
        errors = [*filter(None, (said.root, said.before)), *said.followed][:_MOST_ERRORS]
        for each in errors:
            title = f"lines around the error in {each.event.process}, line {each.event.line}"
            parts.append(_section(title, _around(each)))
        if not errors:
            parts.append(_section("the last lines", (line.text for line in said.progress.last_lines)))
    return redact("\n".join(parts))


def _section(title: str, lines: Iterable[str]) -> str:
    return "\n".join((f"== {title}", *(line[:_LONGEST] for line in lines), ""))


def _environment(findings: Sequence[Finding]) -> Iterator[str]:
    for each in findings:
        if each.severity is not Severity.SKIPPED:
            needed = f" (needed: {each.expected})" if each.expected else ""
            yield f"{each.severity.value:<8}{each.code}: {each.found}{needed}"


def _diagnosis(said: Diagnosis) -> Iterator[str]:
    progress = said.progress
    yield f"verdict: {said.verdict.value}"
    yield f"it came: {progress.place()}, {progress.lines} lines"
    if said.root is not None:
        yield f"error: {said.root.name or 'no rule knows it'}: {said.root.event.error}"
        yield f"process: {said.root.event.process}"
        yield from said.root.event.frames


def _around(error: LoggedError) -> Iterator[str]:
    event = error.event
    if not event.log:
        yield from event.message
        return
    first = max(0, event.line - 1 - _BEFORE)
    with opened(Path(event.log)) as stream:
        for line in islice(parts_of(stream), first, max(event.last, event.line) + _AFTER):
            yield uncoloured(line).rstrip()
