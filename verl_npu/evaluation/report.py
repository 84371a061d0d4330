"""What an evaluation came to, read from its folder, alone or beside another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import EvaluationError
from . import record
from .figures import Difference, Figures, difference, figures
from .record import Entry

__all__ = ["Report", "comparable", "content", "report"]

_OF_THE_QUESTION = ("data", "reward")
"""Settings without which two means are of two things."""
_OF_THE_DRAW = ("rounds", "sampling")


@dataclass(frozen=True, slots=True)
class Report:
    """One evaluation."""

    folder: Path
    settings: Mapping[str, Any]
    entries: tuple[Entry, ...]
    total: Figures
    sources: Mapping[str, Figures]
    """By data_source, where there are several."""

    @property
    def complete(self) -> bool:
        """Whether all answers are there."""
        return bool(self.total.answers == self.settings["rounds"] * self.settings["data"]["rows"])


def report(folder: Path, correct_from: float) -> Report:
    """Read an evaluation.

    Raises:
        EvaluationError: the folder has none, or none of its answers.
    """
    settings = record.settings(folder)
    entries = tuple(record.answers(folder).values())
    if not entries:
        raise EvaluationError(
            subject=str(folder), expected="an evaluation with answers", found="none", fix="let it run first"
        )
    names = sorted({each.data_source for each in entries})
    sources = {name: figures([e for e in entries if e.data_source == name], correct_from) for name in names}
    return Report(folder, settings, entries, figures(entries, correct_from), sources if len(names) > 1 else {})


def comparable(made: Report, other: Report) -> list[str]:
    """Return what two evaluations differ in besides the model; notes, for the reader to weigh.

    Raises:
        EvaluationError: they are of different data, or of different reward functions.
    """
    for name in _OF_THE_QUESTION:
        if made.settings[name] != other.settings[name]:
            raise EvaluationError(
                subject=f"--against {other.folder}",
                expected=f"an evaluation of the same {name}, {made.settings[name]}",
                found=str(other.settings[name]),
                fix="compare evaluations of the same data by the same reward function",
            )
    notes = [
        f"{name} differ: {made.settings[name]}, and {other.settings[name]} of {other.folder}"
        for name in _OF_THE_DRAW
        if made.settings[name] != other.settings[name]
    ]
    return [*notes, *(f"{each.folder} is not complete" for each in (made, other) if not each.complete)]


def content(made: Report, other: Report | None) -> dict[str, object]:
    """Return all of it as plain values."""
    found: dict[str, object] = {"evaluation": _content(made)}
    if other is not None:
        gap = difference(made.entries, other.entries)
        found["against"] = _content(other)
        found["difference"] = {**_gap(gap), "notes": comparable(made, other)}
    return found


def _content(made: Report) -> dict[str, object]:
    return {
        "folder": str(made.folder),
        "complete": made.complete,
        "settings": dict(made.settings),
        "total": made.total.as_json(),
        "sources": {name: each.as_json() for name, each in made.sources.items()},
    }


def _gap(gap: Difference) -> dict[str, object]:
    interval = None if gap.interval is None else [gap.interval.low, gap.interval.high]
    return {"prompts": gap.prompts, "mean": gap.mean, "interval": interval, "verdict": gap.verdict}
