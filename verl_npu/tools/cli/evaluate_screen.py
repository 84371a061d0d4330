"""What `verl-npu evaluate` shows of an evaluation, alone or beside another one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..evaluation.record import ANSWERS
from ..evaluation.report import Figures, Interval, Report, comparable, difference
from . import terminal

_STYLES = {"higher": "green", "lower": "red"}


def show(made: Report, other: Report | None) -> None:
    """Print the figures; raises EvaluationError if the other one is not comparable."""
    notes = comparable(made, other) if other is not None else []
    both = [other, made] if other is not None else [made]
    heads = ["before", "after"] if other is not None else ["value"]
    for label, each in zip(heads if other is not None else ["model"], both, strict=True):
        model = each.settings["model"]
        root = f" ({model['root']})" if model["root"] not in ("", model["name"]) else ""
        terminal.line(f"{label}: {model['name']}{root}, {each.total.prompts} prompts, {each.total.answers} answers")
    _figures(heads, [each.total for each in both])
    for name in made.sources:
        terminal.line(terminal.styled(name, "bold"))
        _figures(heads, [each.sources[name] for each in both])
    for note in notes:
        terminal.paragraph(note, label="  note: ", indent="    ")
    if other is not None:
        gap = difference(made.entries, other.entries)
        reach = f", between {_between(gap.interval)}" if gap.interval else ""
        verdict = terminal.styled(gap.verdict, _STYLES.get(gap.verdict, "yellow"))
        terminal.line(verdict, f": the mean differs by {gap.mean:+.4f}{reach}, over {gap.prompts} prompts")
    terminal.line(f"answers: {made.folder / ANSWERS}")


def _figures(heads: Sequence[str], columns: Sequence[Figures]) -> None:
    rows = [("", *heads, ""), *_rows(columns)]
    terminal.table(rows, [""] * len(rows), indent="  ")


def _rows(columns: Sequence[Figures]) -> Iterator[tuple[str, ...]]:
    yield "mean", *(f"{each.mean:.4f}" for each in columns), "of all answers' scores"
    yield "95 %", *(_between(each.over_prompts) for each in columns), "of the mean, over prompts"
    yield "95 %", *(_between(each.over_rounds) for each in columns), "of the mean, over rounds of these prompts"
    spreads = ["-" if each.spread is None else f"{each.spread:.4f}" for each in columns]
    yield "spread", *spreads, "standard deviation of the rounds' means"
    extremes = [f"{min(each.rounds):.4f} to {max(each.rounds):.4f}" for each in columns]
    yield "rounds", *extremes, "lowest and highest mean of a round"
    for k in columns[-1].pass_at:
        yield f"pass@{k}", *(_share(each.pass_at.get(k)) for each in columns), "without bias"
    yield "cut", *(_share(each.cut) for each in columns), "answers that ended at the limit of tokens"
    lengths = ["-" if each.tokens is None else f"{each.tokens:.1f}" for each in columns]
    yield "tokens", *lengths, "mean length of an answer"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"


def _between(interval: Interval | None) -> str:
    return "-" if interval is None else f"{interval.low:.4f} to {interval.high:.4f}"
