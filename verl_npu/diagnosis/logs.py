"""The logs of one job: files, and folders of files as Ray and CANN write them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import LogError
from .judgement import Diagnosis, Finding, conclude, judge
from .line import process_of_file
from .rule import Rule
from .rules import RULES

__all__ = ["diagnose"]

_FILES = ("*.log", "*.out", "*.err", "*.txt")


def diagnose(paths: Sequence[Path], rules: Sequence[Rule] = RULES) -> Diagnosis:
    """Judge all logs of a job together.

    Raises:
        LogError: a log cannot be read, or a folder holds none.
    """
    found: list[Finding] = []
    survived: list[Finding] = []
    lines = steps = 0
    for path in [file for each in paths for file in _files(each)]:
        one = _judged(path, rules)
        own = [*filter(None, (one.root, one.before)), *one.followed, *one.hints]
        found += sorted(own, key=lambda finding: finding.event.line)
        survived += one.survived
        lines += one.lines
        steps = max(steps, one.steps)
    return conclude(found, survived, lines, steps)


def _judged(path: Path, rules: Sequence[Rule]) -> Diagnosis:
    try:
        with path.open(encoding="utf-8", errors="replace") as source:
            return judge(source, str(path), process_of_file(path), rules)
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
