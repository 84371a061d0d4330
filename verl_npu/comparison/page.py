"""A comparison as one HTML page that needs nothing else: no file, no network, no script."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from ..training_log.log import TrainingLog, spans
from ..training_log.numbers import mean, number
from . import charts
from .baselines import SOURCE, Baseline
from .comparison import Comparison, Pair
from .criterion import Judged, Verdict

__all__ = ["page"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --soft: #59636e; --paper: #ffffff; --card: #f6f8fa; --grid: #d1d9e0;
  --npu: #0b62d6; --reference: #b45309; --within: #1a7f37; --outside: #cf222e; --open: #59636e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --paper: #0d1117; --card: #151b23;
  --grid: #3d444d; --npu: #6cb0ff; --reference: #f0a35e; --within: #3fb950; --outside: #ff7b72; --open: #9198a1; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 75rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; margin: 0.5rem 0; } h2 { font-size: 1.15rem; margin: 2rem 0 0.5rem; }
p, li { color: var(--soft); margin: 0.25rem 0; } ul { padding-left: 1.25rem; }
.within { color: var(--within); } .outside { color: var(--outside); } .open { color: var(--open); }
.mark { font-weight: 600; } .mark, td:last-child { white-space: nowrap; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.4rem 0.6rem; border-bottom: 1px solid var(--grid); vertical-align: top; }
th { color: var(--soft); font-weight: 600; } td small { color: var(--soft); display: block; }
thead th { white-space: nowrap; } td:first-child small { overflow-wrap: anywhere; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(20rem, 100%), 1fr)); gap: 0.75rem; }
figure { margin: 0; padding: 0.5rem; background: var(--card); border-radius: 0.5rem; }
figcaption { font-size: 0.9rem; font-weight: 600; padding: 0 0.25rem; }
svg { width: 100%; height: auto; display: block; }
.legend span::before { content: ""; display: inline-block; width: 1.5rem; margin: 0 0.4rem 0 0; vertical-align: middle;
  border-top: 3px solid var(--npu); }
.legend span + span::before { border-top: 3px dashed var(--reference); margin-left: 1rem; }
@media (max-width: 40rem) { thead { display: none; } tr { display: block; padding: 0.4rem 0;
  border-bottom: 1px solid var(--grid); } td { display: flex; justify-content: space-between; gap: 1rem; border: 0;
  padding: 0.15rem 0; } td::before { content: attr(data-label); color: var(--soft); flex: none; }
  td > div { text-align: right; min-width: 0; overflow-wrap: anywhere; } td:has(> div:empty) { display: none; } }
"""
_CLASS = {"within": "within", "outside": "outside"}


def page(made: Comparison) -> str:
    """Return the page."""
    parts = [
        f"<h1>NPU and reference: {_mark(made.outcome.value)}</h1>",
        f"<p>Judged by {escape(', '.join(made.judged_by))}. {_simulated(made)}</p>",
        "<ul>",
        *(f"<li>{escape(line)}</li>" for line in _sides(made)),
        "</ul>",
        *(part for verdict in made.verdicts for part in _verdict(verdict, made)),
        *(_metrics(made) if made.pairs else []),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>verl-npu compare: {made.outcome.value}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _simulated(made: Comparison) -> str:
    if not made.simulated:
        return ""
    return "SIMULATED: a log here is of virtual NPUs, whose speed and memory are not an NPU's."


def _sides(made: Comparison) -> Iterable[str]:
    yield from _side("NPU log", made.npu)
    if isinstance(made.reference, Baseline):
        yield f"reference: {made.reference.name}, {made.reference.script} on {made.reference.hardware} ({SOURCE})"
    else:
        yield from _side("reference", made.reference)
        yield f"{len(made.common)} steps are in both: {spans(made.common)}"


def _side(name: str, log: TrainingLog) -> Iterable[str]:
    yield f"{name}: {log.source}, {len(log.steps)} steps{', SIMULATED' if log.simulated else ''}"
    for note in log.notes():
        yield f"{name}: {note}"


def _verdict(verdict: Verdict, made: Comparison) -> Iterable[str]:
    asked = "" if verdict.name in made.judged_by else " (for information)"
    yield f"<h2>{escape(verdict.name.capitalize())}: {_mark(verdict.outcome.value)}{asked}</h2>"
    yield f"<p>{escape(verdict.title)}; {verdict.shown}; {escape(verdict.source)}</p>"
    yield from _table(
        ("criterion", "verdict", "NPU", "reference", "measured", "limit"), map(_criterion, verdict.criteria)
    )


def _criterion(judged: Judged) -> tuple[str, ...]:
    steps = f"step{'s' if len(judged.steps) > 1 else ''} {spans(judged.steps)}" if judged.steps else ""
    return (
        f"{escape(judged.name)}<small>{escape(judged.formula)}</small>",
        _mark(judged.outcome.value),
        number(judged.npu),
        number(judged.reference),
        f"{number(judged.value, judged.unit)}<small>{escape(judged.why or steps)}</small>",
        escape(judged.limit),
    )


def _metrics(made: Comparison) -> Iterable[str]:
    yield "<h2>Side by side</h2>"
    yield '<p class="legend"><span>NPU</span><span>reference</span></p>'
    yield '<div class="charts">'
    for pair in made.pairs:
        yield f"<figure><figcaption>{escape(pair.metric.title)}</figcaption>{charts.svg(pair)}</figure>"
    yield "</div>"
    yield "<h2>The same in numbers</h2>"
    heads = ("metric", "steps", "NPU, mean", "reference, mean", "mean difference", "largest at step")
    yield from _table(heads, map(_row, made.pairs))


def _row(pair: Pair) -> tuple[str, ...]:
    npu, reference = (mean([each[step] for step in pair.common]) for each in (pair.npu, pair.reference))
    name = f"{escape(pair.metric.title)}<small>{escape(pair.metric.name)}</small>"
    return (
        name,
        str(len(pair.common)),
        number(npu),
        number(reference),
        number(pair.mean_difference),
        str(pair.largest),
    )


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterable[str]:
    yield f"<table><thead><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr></thead><tbody>"
    for row in rows:
        cells = zip(heads, row, strict=True)
        yield "<tr>" + "".join(f'<td data-label="{head}"><div>{cell}</div></td>' for head, cell in cells) + "</tr>"
    yield "</tbody></table>"


def _mark(outcome: str) -> str:
    return f'<span class="mark {_CLASS.get(outcome, "open")}">{outcome}</span>'
