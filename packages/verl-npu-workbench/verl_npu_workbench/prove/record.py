"""The record that a stage's process writes while it runs: JSON lines, each written to disk at once.

Each line is one of four things: the beginning of a check, the end of a check, an observation of the NPU, or a note
about the process. Checks that finished before the process was killed still count and are not repeated.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from verl_npu.errors import CommandError
from verl_npu.language import gettext as _

from .content import LONGEST, to_json
from .content import read as read_json
from .corpus import Observation
from .result import Check, Verdict

_MOST_LINES = 50_000
_LONGEST_LINE = 1 << 20

Figures = Mapping[str, float]
Tried = Callable[[], "str | tuple[str, Figures]"]
"""A check. It returns a description of its result, optionally with measurements, or raises an exception."""


@dataclass(frozen=True, slots=True)
class Note:
    """A fact about a stage's process or its environment."""

    name: str
    text: str


_LINES = {"begin": str, "check": Check, "observation": Observation, "note": Note}
"""The four kinds of lines, and the types of their content."""


class NotPossible(Exception):
    """Raised when a check cannot be run on this machine. The message is the reason."""


class Wrong(Exception):
    """Raised when a check finds a fault. The message describes the fault."""

    def __init__(self, found: str, expected: str, figures: Figures | None = None) -> None:
        self.found, self.expected, self.figures = found, expected, figures or {}
        super().__init__(found)


class Recorder:
    """Runs the checks of a stage, and records their results."""

    def __init__(self, path: Path, ends: float, now: Callable[[], float]) -> None:
        """No more checks begin after `ends`, a time on the clock `now`."""
        self._ends, self._now = ends, now
        earlier = read(path)
        self._done = {check.name for check in earlier.checks}
        self._seen = {each.key for each in earlier.observations}
        if path.exists():
            # A line that was cut off would make the rest unreadable.
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        self._file = path.open("ab", buffering=0)

    def close(self) -> None:
        """Close the record's file."""
        self._file.close()

    def check(self, name: str, tried: Tried, meaning: str = "") -> None:
        """Run a check, unless an earlier process of this stage has completed it."""
        if name in self._done:
            return
        self._write({"begin": name})
        began = time.monotonic()
        verdict, found, expected = Verdict.PASSED, "", ""
        figures: Figures = {}
        if self._now() > self._ends:
            verdict, found = Verdict.NOT_POSSIBLE, "left out: the stage had no time left"
        else:
            try:
                answer = tried()
                found, figures = (answer, figures) if isinstance(answer, str) else answer
            except NotPossible as why:
                verdict, found = Verdict.NOT_POSSIBLE, str(why)
            except Wrong as wrong:
                verdict, found, expected = Verdict.FAILED, wrong.found, wrong.expected
                figures = wrong.figures
            except Exception as error:
                verdict, found, expected = Verdict.FAILED, described(error), "no error"
        check = Check(
            name=name,
            verdict=verdict,
            found=found[:LONGEST],
            expected=expected[:LONGEST],
            meaning=meaning if verdict is Verdict.FAILED else "",
            seconds=time.monotonic() - began,
            # JSON has no NaN and no infinity; the text has them.
            figures={key: value for key, value in figures.items() if math.isfinite(value)},
        )
        self._done.add(name)
        self._write({"check": to_json(check)})

    def observe(self, seen: Observation) -> None:
        """Record an observation of the NPU. If an observation of the same request was already recorded, do nothing."""
        if seen.key not in self._seen:
            self._seen.add(seen.key)
            self._write({"observation": to_json(seen)})

    def note(self, name: str, text: str) -> None:
        """Record a fact about this process or its environment."""
        self._write({"note": to_json(Note(name, text[:LONGEST]))})

    def _write(self, line: Mapping[str, object]) -> None:
        data = json.dumps(line).encode() + b"\n"
        # A full disk takes only part of a line.
        if self._file.write(data) != len(data):
            raise OSError(28, "No space left on device")
        os.fsync(self._file.fileno())


def described(error: BaseException) -> str:
    """Return an error's type and the first line of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The contents of a stage's record so far."""

    checks: tuple[Check, ...] = ()
    observations: tuple[Observation, ...] = ()
    notes: Mapping[str, str]
    beginning: str = ""
    """The check that has begun but has not ended."""


def read(path: Path) -> Recorded:
    """Return the contents of a stage's record, without an incomplete last line."""
    checks: dict[str, Check] = {}
    observations: list[Observation] = []
    notes: dict[str, str] = {}
    beginning = ""
    for number, line in enumerate(_lines(path)):
        content = read_json(Mapping[str, object], _parsed(line, path, number), str(path))
        said = {
            name: read_json(_LINES[name], part, str(path), name) for name, part in content.items() if name in _LINES
        }
        if "begin" in said:
            beginning = said["begin"]
        elif "check" in said:
            checks[said["check"].name], beginning = said["check"], ""
        elif "observation" in said:
            observations.append(said["observation"])
        elif "note" in said:
            notes[said["note"].name] = said["note"].text
    return Recorded(checks=tuple(checks.values()), observations=tuple(observations), notes=notes, beginning=beginning)


def _lines(path: Path) -> list[bytes]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    lines = data.split(b"\n")[:-1]
    if len(lines) > _MOST_LINES or any(len(line) > _LONGEST_LINE for line in lines):
        raise CommandError(
            subject=str(path),
            expected=_("at most {lines} lines of at most {bytes} bytes").format(
                lines=_MOST_LINES, bytes=_LONGEST_LINE
            ),
            found=_("{count} lines").format(count=len(lines)),
            fix=_("the folder is damaged; start a new proof in another folder"),
        )
    return lines


def _parsed(line: bytes, path: Path, number: int) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CommandError(
            subject=_("{path}, line {line}").format(path=path, line=number + 1),
            expected=_("a line of JSON that a stage wrote"),
            found=described(error),
            fix=_("the folder is damaged; start a new proof in another folder"),
        ) from error
