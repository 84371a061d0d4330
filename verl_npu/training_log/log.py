"""A training's steps, put together from the lines of its log."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from .line import Line

__all__ = ["Assembly", "Restart", "TrainingLog", "spans"]


@dataclass(frozen=True, slots=True)
class Restart:
    """The job went on from an earlier step: it was started again from a checkpoint, or from the beginning."""

    after: int
    """The last step before it."""
    to: int
    """The first step after it."""


@dataclass(frozen=True, slots=True)
class TrainingLog:
    """What a log says of a training, step by step."""

    source: str
    steps: Mapping[int, Mapping[str, float]]
    """By number, in order. A step that was run twice has what the later run says."""
    last: int
    """The step that was logged last. It is not the highest one while a job that went back catches up."""
    restarts: tuple[Restart, ...] = ()
    left_over: tuple[int, ...] = ()
    """Steps of an earlier run that the later ones have not reached again."""
    damaged: int = 0
    """Parts of step lines that could not be read."""
    cut: bool = False
    """The log ends within a line, whose last value may not be whole."""
    simulated: bool = False
    """verl-npu said in the log that the NPUs were virtual."""

    def series(self, *names: str) -> dict[int, float]:
        """Return one metric by step; of several names the first that a step has."""
        found = {}
        for step, metrics in self.steps.items():
            for name in names:
                if name in metrics:
                    found[step] = metrics[name]
                    break
        return found

    def gaps(self) -> list[tuple[int, int]]:
        """Return the first and the last of each row of steps that are missing between others."""
        return [(one + 1, two - 1) for one, two in pairwise(self.steps) if two > one + 1]

    def notes(self) -> list[str]:
        """Return what a reader has to know of this log, in sentences without a full stop."""
        said = [
            f"it went back from step {restart.after} to step {restart.to}; of a step that was run twice, the later "
            "run counts"
            for restart in self.restarts
        ]
        if self.left_over:
            said.append(f"{_steps(self.left_over)} of an earlier run, and no later run has come so far")
        if self.gaps():
            rows = ", ".join(_span(first, final) for first, final in self.gaps())
            said.append(f"it has no line of step {rows}")
        if self.damaged:
            said.append(f"{self.damaged} values in its step lines are damaged and were left out")
        if self.cut:
            said.append("its last line is cut off, and the value there was left out")
        return said


@dataclass(slots=True)
class Assembly:
    """A log in the making: what its lines have said so far."""

    _steps: dict[int, dict[str, float]] = field(default_factory=dict)
    _run_of: dict[int, int] = field(default_factory=dict)
    _latest: dict[str, int] = field(default_factory=dict)
    """The step at which each metric was logged last: training and validation of one step have a line each, and
    asynchronous trainers log a validation when later steps are already there."""
    _restarts: list[Restart] = field(default_factory=list)
    _damaged: int = 0
    _last: int = 0
    cut: bool = False
    simulated: bool = False

    def add(self, line: Line) -> None:
        """Take in the next line; one that repeats what is known, as a worker's file does the driver's, is no news."""
        known = self._steps.get(line.step, {})
        this_run = self._run_of.get(line.step) == len(self._restarts)
        if this_run and all(_same(known.get(name), value) for name, value in line.metrics.items()):
            return
        if any(self._latest.get(name, -1) >= line.step for name in line.metrics):
            self._restarts.append(Restart(max(self._latest.values()), line.step))
            self._latest.clear()
            this_run = False
        if not this_run and not known.keys().isdisjoint(line.metrics):
            # Nothing of the earlier run's may stand among the later one's.
            known.clear()
        self._steps.setdefault(line.step, {}).update(line.metrics)
        self._run_of[line.step] = len(self._restarts)
        self._latest.update(dict.fromkeys(line.metrics, line.step))
        self._last = max(self._latest.values())
        self._damaged += line.damaged

    def log(self, source: str) -> TrainingLog:
        """Return what is known now."""
        return TrainingLog(
            source=source,
            steps={step: dict(self._steps[step]) for step in sorted(self._steps)},
            last=self._last,
            restarts=tuple(self._restarts),
            left_over=tuple(step for step in sorted(self._steps) if step > self._last),
            damaged=self._damaged,
            cut=self.cut,
            simulated=self.simulated,
        )


def spans(steps: Iterable[int]) -> str:
    """Return steps as a person writes them: `1 to 4, 7`."""
    rows: list[list[int]] = []
    for step in sorted(steps):
        if rows and step == rows[-1][1] + 1:
            rows[-1][1] = step
        else:
            rows.append([step, step])
    return ", ".join(_span(first, final) for first, final in rows)


def _span(first: int, final: int) -> str:
    return str(first) if first == final else f"{first} to {final}"


def _steps(steps: tuple[int, ...]) -> str:
    return f"step {steps[0]} is" if len(steps) == 1 else f"steps {spans(steps)} are"


def _same(one: float | None, other: float) -> bool:
    return one is not None and (one == other or (math.isnan(one) and math.isnan(other)))
