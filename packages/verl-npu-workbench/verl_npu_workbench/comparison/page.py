"""Renders a comparison as an HTML page, and its metrics as curves: in a PNG file, or in SVG elements that use the
page's colours."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from verl_npu.language import gettext as _
from verl_npu.language import ngettext

from ..logs.metrics import drawable, number
from ..logs.training import TrainingLog, spans
from ..pages import render
from .comparison import Comparison, Pair
from .standards import SOURCE, Baseline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Each key represents one colour of the page, which differs between the light and the dark theme.
_INK, _GRID, _NPU, _REFERENCE = "#1a1b1c", "#d0d1d2", "#0b62d6", "#b45309"
_PAGE_COLOURS = {_INK: "var(--ink)", _GRID: "var(--grid)", _NPU: "var(--npu)", _REFERENCE: "var(--reference)"}
_COLUMNS = 3


def draw(made: Comparison, path: Path) -> None:
    """Draw all metrics in one PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, len(made.pairs))
    rows = -(-len(made.pairs) // columns)
    figure = Figure(figsize=(4.2 * columns, 2.6 * rows + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    for place, pair in enumerate(made.pairs):
        axes = figure.add_subplot(rows, columns, place + 1)
        _curves(axes, pair)
        axes.set_title(pair.metric.title, fontsize=10)
        if place == 0:
            axes.legend(fontsize=8, frameon=False)
    simulated = _(" (NPU log: SIMULATED)") if made.npu.simulated else ""
    figure.suptitle(
        _("{outcome}, by the standard {judged_by}{simulated}").format(
            outcome=made.outcome.value, judged_by=_(", ").join(made.judged_by), simulated=simulated
        )
    )
    figure.savefig(path, format="png", dpi=110)


def svg(pair: Pair) -> str:
    """Return one metric as an SVG element for a page that defines the colours ink, grid, npu, and reference."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    target = io.StringIO()
    # A different salt for each chart keeps the IDs on the page unique.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": pair.metric.title}):
        figure = Figure(figsize=(4.2, 2.3), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        _curves(axes, pair)
        for spine in axes.spines.values():
            spine.set_color(_GRID)
        axes.tick_params(colors=_INK, labelsize=9)
        axes.xaxis.label.set_color(_INK)
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None})
    title, (npu, reference) = pair.metric.title, pair.means
    described = _("{title} by step: mean {npu:.4g} on the NPU, {reference:.4g} in the reference").format(
        title=title, npu=npu, reference=reference
    )
    return _clean_svg(target.getvalue(), described)


def _curves(axes: Axes, pair: Pair) -> None:
    # The reference is drawn below and thicker, so that it shows where both are equal.
    for values, label, colour, style, width in (
        (pair.reference, "reference", _REFERENCE, "--", 3.0),
        (pair.npu, "NPU", _NPU, "-", 1.4),
    ):
        marker = "o" if len(values) == 1 else None
        axes.plot(*_with_gaps(values), style, color=colour, label=label, marker=marker, linewidth=width)
    axes.grid(color=_GRID, linewidth=0.6)
    axes.set_xlabel("step", fontsize=9)
    axes.tick_params(labelsize=8)


def _with_gaps(values: Mapping[int, float]) -> tuple[list[int], list[float]]:
    """Return the steps and values of a curve, with NaN where steps or numbers are missing."""
    values = {step: value if drawable(value) else float("nan") for step, value in values.items()}
    steps = range(min(values), max(values) + 1)
    if len(steps) > 4 * len(values):
        # A metric that is logged at every tenth step is still drawn as one curve.
        return list(values), list(values.values())
    return list(steps), [values.get(step, float("nan")) for step in steps]


def _clean_svg(text: str, description: str) -> str:
    text = text[text.index("<svg") :]
    for drawn, named in _PAGE_COLOURS.items():
        text = text.replace(drawn, named)
    # matplotlib's group IDs repeat in each chart and are unused, and its style sheet would apply to all charts.
    text = re.sub(r' id="[a-z0-9.]+_\d+"', "", text)
    text = re.sub(r"<metadata>(?:(?!<metadata>).)*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<style(?:(?!<style).)*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    # Use the page's font: the chart's may not be installed.
    text = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{description}"', 1)


def page(made: Comparison) -> str:
    """Render a comparison as a single HTML page."""
    return render("comparison.html", made=made, sides=list(_sides(made)), spans=spans, number=number, svg=svg)


def _sides(made: Comparison) -> Iterable[str]:
    yield from _side(_("NPU log"), made.npu)
    if isinstance(made.reference, Baseline):
        yield _("reference: {reference}, {script} on {hardware} ({source})").format(
            reference=made.reference.name,
            script=made.reference.script,
            hardware=made.reference.hardware,
            source=SOURCE,
        )
    else:
        yield from _side("reference", made.reference)
        yield describe_common(made.common)


def describe_common(common: Sequence[int]) -> str:
    """Return a sentence about the steps that both logs contain."""
    text = ngettext("{count} step is in both: {spans}", "{count} steps are in both: {spans}", len(common))
    return text.format(count=len(common), spans=spans(common) or _("none"))


def describe_side(name: str, log: TrainingLog) -> str:
    """Return a sentence about a log's source and its number of steps."""
    text = ngettext("{name}: {source}, {count} step", "{name}: {source}, {count} steps", log.count)
    return text.format(name=name, source=log.source, count=log.count) + (", SIMULATED" if log.simulated else "")


def _side(name: str, log: TrainingLog) -> Iterable[str]:
    yield describe_side(name, log)
    for note in log.notes():
        yield f"{name}: {note}"
