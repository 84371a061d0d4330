"""What an evaluation came to, alone or beside another one: mean, intervals, spread by round, pass@k."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from verl_npu.errors import EvaluationError
from verl_npu.language import gettext as _

from ..extras import need
from . import record
from .record import Entry

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
            subject=str(folder), expected=_("an evaluation with answers"), found=_("none"), fix=_("let it run first")
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
                expected=_("an evaluation of the same {name}, {settings}").format(
                    name=name, settings=made.settings[name]
                ),
                found=str(other.settings[name]),
                fix=_("compare evaluations of the same data by the same reward function"),
            )
    notes = [
        _("{name} differ: {settings}, and {settings_settings} of {folder}").format(
            name=name, settings=made.settings[name], settings_settings=other.settings[name], folder=other.folder
        )
        for name in _OF_THE_DRAW
        if made.settings[name] != other.settings[name]
    ]
    return [
        *notes,
        *(_("{folder} is not complete").format(folder=each.folder) for each in (made, other) if not each.complete),
    ]


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


CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """Where a mean lies, with a confidence of 95 %."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What the answers to some prompts came to."""

    prompts: int
    answers: int
    mean: float
    over_prompts: Interval | None
    """Of the mean, had other prompts of the same kind been asked; None of a single one."""
    over_rounds: Interval | None
    """Of the mean, had the same prompts been answered again; None of a single round."""
    rounds: tuple[float, ...]
    """The mean of each round."""
    spread: float | None
    """The standard deviation of those."""
    pass_at: Mapping[int, float]
    cut: float
    """The share of answers that ended at the limit of tokens."""
    tokens: float | None
    """The mean length of an answer."""

    def as_json(self) -> dict[str, object]:
        """Return it as plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of one evaluation less that of another one, over the prompts that both asked."""

    prompts: int
    mean: float
    interval: Interval | None
    """By the differences of each prompt's means."""

    @property
    def verdict(self) -> str:
        """Whether the two can be told apart."""
        if self.interval is None:
            return _("not told apart: a single prompt")
        if self.interval.low > 0:
            return "higher"
        return "lower" if self.interval.high < 0 else _("not told apart")


def figures(entries: Iterable[Entry], correct_from: float) -> Figures:
    """Return the figures of answers, of which there is at least one.

    An answer is correct if its `acc`, or its score where the reward function returns no `acc`, is `correct_from` or
    more.
    """
    all_of_them = list(entries)
    by_row = _grouped(all_of_them)
    by_round: dict[int, list[float]] = {}
    for each in all_of_them:
        by_round.setdefault(each.round, []).append(each.score)
    rounds = tuple(_mean(by_round[number]) for number in sorted(by_round))
    of_prompts = [_mean([each.score for each in row]) for row in by_row.values()]
    tokens = [each.tokens for each in all_of_them if each.tokens is not None]
    return Figures(
        prompts=len(by_row),
        answers=len(all_of_them),
        mean=_mean([each.score for each in all_of_them]),
        over_prompts=_interval(of_prompts),
        over_rounds=_interval(rounds),
        rounds=rounds,
        spread=_deviation(rounds),
        pass_at=_passes(by_row.values(), correct_from),
        cut=sum(each.finish_reason == "length" for each in all_of_them) / len(all_of_them),
        tokens=_mean(tokens) if tokens else None,
    )


def difference(entries: Iterable[Entry], against: Iterable[Entry]) -> Difference:
    """Return how much higher the first ones' mean is than the second ones'."""
    one, other = _grouped(entries), _grouped(against)
    both = sorted(set(one) & set(other))
    differences = [
        _mean([each.score for each in one[row]]) - _mean([each.score for each in other[row]]) for row in both
    ]
    return Difference(len(both), _mean(differences), _interval(differences))


def pass_at(k: int, answers: int, correct: int) -> float:
    """Return the chance that one of k answers is correct, without bias, from `answers` of which so many are.

    1 - C(n - c, k) / C(n, k), of "Evaluating Large Language Models Trained on Code" (2021), section 2.1.
    """
    return 1 - math.comb(answers - correct, k) / math.comb(answers, k)


def _grouped(entries: Iterable[Entry]) -> dict[int, list[Entry]]:
    found: dict[int, list[Entry]] = {}
    for each in entries:
        found.setdefault(each.row, []).append(each)
    return found


def _passes(rows: Iterable[Sequence[Entry]], correct_from: float) -> dict[int, float]:
    counts = [(len(row), sum(_worth(each) >= correct_from for each in row)) for row in rows]
    fewest = min(answers for answers, _unused in counts)
    # Powers of two as verl's validation has them, and all.
    sizes = {1 << power for power in range(fewest.bit_length()) if 1 << power <= fewest} | {fewest}
    return {k: _mean([pass_at(k, answers, correct) for answers, correct in counts]) for k in sorted(sizes)}


def _worth(entry: Entry) -> float:
    accuracy = entry.more.get("acc")
    return float(accuracy) if isinstance(accuracy, (int, float)) else entry.score


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _deviation(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    mean = _mean(values)
    return math.sqrt(math.fsum((each - mean) ** 2 for each in values) / (len(values) - 1))


def _interval(values: Sequence[float]) -> Interval | None:
    """Return Student's interval of the mean of independent values."""
    spread = _deviation(values)
    if spread is None:
        return None
    mean = _mean(values)
    if spread == 0:
        return Interval(mean, mean)
    need("scipy", _("the interval of a mean"), "evaluate", EvaluationError)
    from scipy import stats

    error = spread / math.sqrt(len(values))
    low, high = stats.t.interval(CONFIDENCE, len(values) - 1, loc=mean, scale=error)
    return Interval(float(low), float(high))
