"""`verl-npu doctor --log`: from the log of a failed job to the cause, what to do, and the process where it began."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from ..diagnosis.judgement import Conclusion, Diagnosis, LoggedError, diagnose
from . import terminal

_SHOWN = 6
"""Lines of an error that are shown."""
_SAID = {
    Conclusion.CAUSE: ("red", "the cause is known"),
    Conclusion.CODE: ("yellow", "a code that has many causes, and nothing in the log that tells more"),
    Conclusion.CONSEQUENCE: ("yellow", "the log has only consequences: the cause is in another process"),
    Conclusion.UNKNOWN: ("yellow", "unknown: no rule knows this error"),
    Conclusion.NONE: ("green", "no error"),
}


def doctor_log(paths: Sequence[Path], as_json: bool) -> NoReturn:
    """Judge the logs of a job, print what they say, and exit.

    Exit status: 0 there is no error, 1 there is one, 2 a log cannot be read.
    """
    said = diagnose(paths)
    if as_json:
        click.echo(json.dumps(_content(said), indent=2))
    else:
        _print(said)
    sys.exit(int(said.root is not None))


def _content(said: Diagnosis) -> dict[str, object]:
    return {
        "verdict": said.verdict.value,
        "lines": said.lines,
        "steps": said.steps,
        "root": _error(said.root),
        "before": _error(said.before),
        "followed": [_error(each) for each in said.followed],
        "hints": [_error(each) for each in said.hints],
        "survived": [_error(each) for each in said.survived],
    }


def _error(error: LoggedError | None) -> dict[str, object] | None:
    if error is None:
        return None
    event, finding = error.event, error.finding
    process = event.process
    return {
        "rule": error.name or None,
        "means": finding.why if finding else None,
        "fix": finding.fix if finding else None,
        "seen": list(finding.source) if finding else [],
        "error": event.error,
        "process": {
            "name": process.name,
            "pid": process.pid,
            "host": process.ip,
            "rank": process.rank,
            "npu": process.device,
        },
        "log": event.log,
        "line": event.line,
        "text": _excerpt(error),
    }


def _excerpt(error: LoggedError) -> list[str]:
    """What of an error is shown: the lines that a rule knows, or the end of the traceback."""
    event, rule = error.event, error.rule
    if rule is None:
        return [*event.frames[-3:], *[line for line in event.message if line.strip()][:_SHOWN]]
    found = rule.pattern.search(event.text)
    if found is None:
        return []
    first, last = (event.text.count("\n", 0, place) for place in found.span())
    return [line for line in event.message[first : last + 1] if line.strip()][:_SHOWN]


def _print(said: Diagnosis) -> None:
    style, words = _SAID[said.verdict]
    terminal.line(terminal.styled(said.verdict.value, style), f": {words}")
    if said.root is None:
        done = f"; it has {said.steps} steps" if said.steps else ""
        terminal.paragraph(f"{said.lines} lines were read, and none says that the job failed{done}.", indent="  ")
    else:
        _print_root(said.root)
    if said.before:
        terminal.echo()
        terminal.paragraph(f"Before it, in {said.before.event.process}: {said.before.event.error}", indent="  ")
    if said.followed:
        terminal.echo()
        counts = Counter(each.name or each.event.error.split(":")[0] for each in said.followed)
        words = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in counts.most_common(8))
        terminal.paragraph(f"With it came: {words}.", indent="  ")
    for hint in {each.name: each for each in said.hints}.values():
        if hint.finding and said.root:
            terminal.paragraph(f"{hint.finding.why}; to do: {hint.finding.fix}", label="note: ", indent="  ")
    if said.survived:
        names = ", ".join(sorted({each.name or each.event.error[:60] for each in said.survived}))
        terminal.paragraph(f"the job went on after other errors ({names})", label="note: ", indent="  ")


def _print_root(root: LoggedError) -> None:
    event = root.event
    where = f"{event.log}, line {event.line}" if event.log else f"line {event.line}"
    terminal.line("  ", terminal.styled(root.name or event.error, "bold"))
    terminal.paragraph(f"It began in {event.process} ({where}).", indent="    ")
    for line in _excerpt(root):
        terminal.line("    | ", line.strip())
    if root.finding is None:
        terminal.paragraph(
            "No rule knows this error. It is the first of the log, and not Ray's copy of it; look for its text in the "
            "issues of verl, vllm-ascend and Ascend/pytorch.",
            indent="    ",
        )
        return
    terminal.paragraph(f"It means: {root.finding.why}.", indent="    ")
    terminal.paragraph(f"To do: {root.finding.fix}.", indent="    ")
    terminal.paragraph(f"Seen in: {', '.join(root.finding.source)}.", indent="    ")
