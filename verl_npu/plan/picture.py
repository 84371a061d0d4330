"""Memory over time by phase and holder, as a picture (PNG) or as an SVG element for a page."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .hardware import GIB
from .job import Outcome, Point
from .phase import Holder
from .verdict import Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "draw", "svg"]

COLOURS = {
    Holder.WEIGHTS: "#0b62d6",
    Holder.ENGINE: "#be185d",
    Holder.OPTIMIZER: "#6d28d9",
    Holder.GRADIENTS: "#b45309",
    Holder.GATHERED: "#0891b2",
    Holder.MESSAGES: "#64748b",
    Holder.ACTIVATIONS: "#1a7f37",
}
"""In the order in which they are stacked: what stays longest is at the bottom."""
_LIMIT = "#cf222e"
_SIZE = (11.0, 4.6)


def draw(outcome: Outcome, verdict: Verdict, title: str, path: Path) -> None:
    """Write one rank's memory over time as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = _figure(outcome, verdict, title)
    FigureCanvasAgg(figure)
    figure.savefig(path, format="png", dpi=110)


def svg(outcome: Outcome, verdict: Verdict, title: str) -> str:
    """Return the same as an SVG element."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    target = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        figure = _figure(outcome, verdict, title)
        FigureCanvasSVG(figure)
        figure.savefig(target, format="svg", metadata={"Date": None})
    text = target.getvalue()
    return text[text.index("<svg") :]


def _figure(outcome: Outcome, verdict: Verdict, title: str) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot()
    points = outcome.timeline
    heights = [[point.holders.get(holder.value, 0) / GIB for point in points] for holder in COLOURS]
    axes.stackplot(
        range(len(points)),
        heights,
        colors=list(COLOURS.values()),
        labels=[holder.value for holder in COLOURS],
        linewidth=0,
    )
    _phases(axes, points)
    capacity = verdict.capacity / GIB
    axes.axhline(capacity, color=_LIMIT, linewidth=1.2, linestyle="--", label=f"an NPU's memory, {capacity:.1f} GiB")
    axes.set_ylabel("GiB of tensors")
    axes.set_xticks([])
    axes.set_xlim(0, max(len(points) - 1, 1))
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return figure


def _phases(axes: Axes, points: Sequence[Point]) -> None:
    """Name the phases below the curve, with a line where one ends."""
    start = 0
    for name, group in itertools.groupby(points, key=lambda point: point.phase):
        end = start + len(list(group))
        if start:
            axes.axvline(start, color="#9198a1", linewidth=0.6)
        axes.text(
            (start + end) / 2,
            -0.02,
            name,
            ha="right",
            va="top",
            fontsize=7,
            rotation=30,
            transform=axes.get_xaxis_transform(),
        )
        start = end
