"""One text to attach to a report: environment, states, what was found and the lines around it, without names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from verl_npu.findings import Finding, Severity

from ..logs.files import opened
from ..logs.lines import parts_of, uncoloured
from ..secrecy.redaction import Redaction
from ..secrecy.variables import JOB_VARIABLES
from .judgement import Diagnosis, LoggedError

_BEFORE, _AFTER = 20, 60
"""Lines of a log around an error."""
_LONGEST, _LONGEST_READ = 600, 6000
"""Characters of a line, and of what is looked at of it: a secret that is cut is not known any more."""
_MOST_ERRORS = 5


_LONGEST_TEXT = 60_000
"""Characters of all of it: a forum's longest post has 65,536."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a report is made of; what there is nothing of is left out."""

    findings: Sequence[Finding]
    """The doctor's."""
    environ: Mapping[str, str]
    states: Mapping[str, str]
    """Of verl-npu's features."""
    told_by: str
    """What told these states."""
    said: Diagnosis | None = None
    """Of the job's log."""


def render(made: Report, redact: Redaction) -> str:
    """Return the text, without names and secrets."""
    sections = [
        _section("environment", _environment(made.findings)),
        _section("variables", (f"{name}={text}" for name, text in _of_the_job(made.environ))),
        _section(f"verl-npu's features, by {made.told_by}", (f"{each}: {it}" for each, it in made.states.items())),
    ]
    said = made.said
    if said is not None:
        sections.append(_section("diagnosis", _diagnosis(said)))
        for each in [*filter(None, (said.root, said.before)), *said.followed][:_MOST_ERRORS]:
            title = f"lines around the error in {each.event.process}, line {each.event.line}"
            sections.append(_section(title, _around(each)))
        # The end goes in even where there are many errors before it.
        sections.insert(4, _section("the log's end", (line.text for line in said.progress.last_lines)))
    shown = redact("\n".join(filter(None, sections))).split("\n")
    text = "\n".join(line[:_LONGEST] for line in shown)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}\n… (cut: a post can hold no more)\n"


def _of_the_job(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    return sorted((name, text) for name, text in environ.items() if JOB_VARIABLES.fullmatch(name))


def _section(title: str, lines: Iterable[str]) -> str:
    said = [line[:_LONGEST_READ] for line in lines]
    return "\n".join((f"== {title}", *said, "")) if said else ""


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
