"""The text of `doctor --report`: the environment, the features' states, the diagnosis, and log lines, without names
and secrets."""

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
"""The number of log lines that are included before and after an error."""
_LONGEST, _LONGEST_READ = 600, 6000
"""The maximum number of characters of a line that are printed, and the maximum number that are searched for secrets.
The second number is larger, because a truncated secret would not be recognized."""
_MOST_ERRORS = 5


_LONGEST_TEXT = 60_000
"""The maximum number of characters of the whole text. GitHub allows 65,536 in a comment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The content of a report; empty parts are left out."""

    findings: Sequence[Finding]
    """The doctor's findings."""
    environ: Mapping[str, str]
    states: Mapping[str, str]
    """The states of verl-npu's features."""
    told_by: str
    """The source of the states: manifests, a log, or `verl-npu check`."""
    said: Diagnosis | None = None
    """The diagnosis of the job's logs."""


def render(made: Report, redact: Redaction) -> str:
    """Return the text of a report, without names and secrets."""
    sections = [
        _section("environment", _environment(made.findings)),
        _section("variables", (f"{name}={text}" for name, text in _job_variables(made.environ))),
        _section(f"verl-npu's features, by {made.told_by}", (f"{each}: {it}" for each, it in made.states.items())),
    ]
    said = made.said
    if said is not None:
        sections.append(_section("diagnosis", _diagnosis(said)))
        for each in [*filter(None, (said.root, said.before)), *said.followed][:_MOST_ERRORS]:
            title = f"lines around the error in {each.event.process}, line {each.event.line}"
            sections.append(_section(title, _around(each)))
        # The end comes before the errors, so that many errors do not cut it off.
        sections.insert(4, _section("the log's end", (line.text for line in said.progress.last_lines)))
    shown = redact("\n".join(filter(None, sections))).split("\n")
    text = "\n".join(line[:_LONGEST] for line in shown)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}\n… (cut to the length of a post)\n"


def _job_variables(environ: Mapping[str, str]) -> list[tuple[str, str]]:
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
    yield f"progress: {progress.place()}, {progress.lines} lines"
    if said.root is not None:
        yield f"error: {said.root.name or 'no rule matches it'}: {said.root.event.error}"
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
