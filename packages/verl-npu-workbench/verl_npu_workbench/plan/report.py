"""Formats a plan as JSON, as an HTML page, and as a chart of memory use over time."""

from __future__ import annotations

import dataclasses
import io
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from verl_npu.language import gettext as _

from ..pages import render
from .hardware import GIB
from .job import Holder, Outcome, Phase, Point
from .planning import Planned
from .search import Largest, Search
from .snapshot import Comparison
from .timing import assumptions, spans, total
from .verdict import Fit, PhaseFit, Verdict, allocated, host_peaks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NOTHING = Search()


def content(
    name: str,
    planned: Planned,
    verdict: Verdict,
    search: Search = _NOTHING,
    largest: Largest | None = None,
    against: Comparison | None = None,
) -> dict[str, object]:
    """Return the JSON representation of a plan. Memory is in bytes and time in seconds."""
    found = spans(planned)
    return {
        "format": 1,
        "simulated": True,
        "name": name,
        "verdict": verdict.fit.value,
        "hardware": dataclasses.asdict(planned.hardware),
        "capacity": verdict.capacity,
        "model": {
            "source": planned.model.source,
            "parameters": planned.model.parameters,
            "active": planned.model.active,
            "layers": planned.model.layers,
        },
        "share": _share(planned),
        "rollout": dataclasses.asdict(planned.rollout) if planned.rollout else None,
        "host": host_peaks(planned),
        "allocated": allocated(planned) if verdict.fit is not Fit.FAILED else None,
        "reserve": [dataclasses.asdict(each) for each in verdict.reserve],
        "phases": [_phase(phase) for phase in verdict.phases],
        "seconds": [dataclasses.asdict(span) for span in (*found, total(found, planned.servers))],
        "assumptions": list(assumptions(planned)),
        "timeline": {
            str(outcome.rank): [dataclasses.asdict(point) for point in outcome.timeline]
            for outcome in planned.outcomes
        },
        "ranks": [_rank(outcome, planned) for outcome in planned.outcomes],
        "tries": [
            {"changes": dict(each.knob.changes), "why": each.knob.why, "verdict": each.verdict.fit.value}
            for each in search.tries
        ],
        "cause": search.cause,
        "proposal": dict(search.proposal),
        "largest_micro_batch": dataclasses.asdict(largest) if largest else None,
        "against": dataclasses.asdict(against) if against else None,
        "notes": list(planned.notes),
        "took": planned.seconds,
    }


def _share(planned: Planned) -> dict[str, object]:
    share = planned.share
    return {
        **dataclasses.asdict(share),
        "kinds": {str(rank): kind for rank, kind in share.kinds.items()},
        "micro_batches": [{**dataclasses.asdict(each), "phase": each.phase.value} for each in share.micro_batches],
    }


def _phase(phase: PhaseFit) -> dict[str, object]:
    return {
        "phase": phase.phase,
        "rank": phase.rank,
        "tensors": phase.tensors,
        "needed": phase.needed,
        "fit": phase.fit.value,
        "holders": dict(phase.holders),
    }


def _rank(outcome: Outcome, planned: Planned) -> dict[str, object]:
    return {
        "rank": outcome.rank,
        "kind": planned.share.kinds.get(outcome.rank, ""),
        "peaks": {cost.phase: cost.peak for cost in outcome.phases},
        "host": outcome.host,
        "seconds": outcome.seconds,
        "error": outcome.error,
        "failed_in": outcome.failed_in,
    }


_COLOURS = {
    Holder.WEIGHTS: "#0b62d6",
    Holder.ENGINE: "#be185d",
    Holder.CACHE: "#f472b6",
    Holder.OPTIMIZER: "#6d28d9",
    Holder.GRADIENTS: "#b45309",
    Holder.GATHERED: "#0891b2",
    Holder.MESSAGES: "#64748b",
    Holder.ACTIVATIONS: "#1a7f37",
}
"""The colours of the holders, in stacking order. Memory that is kept longest is at the bottom."""
_LIMIT = "#cf222e"
_SIZE = (11.0, 4.6)
_APART = 0.032
"""The smallest distance between two names of phases, as a fraction of the chart's width. The names are slanted by 30
degrees."""
_PART = 12
"""The rollout takes up one twelfth of the time axis, because its real duration is not recorded by any rank."""


def draw(outcome: Outcome, verdict: Verdict, title: str, path: Path) -> None:
    """Save a PNG chart of one rank's memory use over time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = _figure(outcome, verdict, title)
    FigureCanvasAgg(figure)
    figure.savefig(path, format="png", dpi=110)


def _svg(outcome: Outcome, verdict: Verdict, title: str) -> str:
    """Return a chart of one rank's memory use over time as an SVG element."""
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
    points = _timeline(outcome, verdict)
    heights = [[point.holders.get(holder.value, 0) / GIB for point in points] for holder in _COLOURS]
    axes.stackplot(
        range(len(points)),
        heights,
        colors=list(_COLOURS.values()),
        labels=[holder.value for holder in _COLOURS],
        linewidth=0,
    )
    _phases(axes, points)
    capacity = verdict.capacity / GIB
    axes.axhline(
        capacity,
        color=_LIMIT,
        linewidth=1.2,
        linestyle="--",
        label=_("an NPU's memory, {capacity:.1f} GiB").format(capacity=capacity),
    )
    axes.set_ylabel(_("GiB of tensors"))
    axes.set_xticks([])
    axes.set_xlim(0, max(len(points) - 1, 1))
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return figure


def _timeline(outcome: Outcome, verdict: Verdict) -> Sequence[Point]:
    """Return a rank's memory over time. The rollout is inserted after the first phase, which is its place in a
    step."""
    rollout = next((phase for phase in verdict.phases if phase.phase == Phase.ROLLOUT.value), None)
    points = list(outcome.timeline)
    # An engine on NPUs of its own has no reserve of the trainer beside it, and is not on this rank.
    if rollout is None or not points or not rollout.holders.get(Holder.RESERVE.value):
        return points
    start = next((n for n, point in enumerate(points) if point.phase != Phase.LOAD.value), len(points))
    width = max(len(points) // _PART, 2)
    return [*points[:start], *[Point(rollout.phase, rollout.holders)] * width, *points[start:]]


def _phases(axes: Axes, points: Sequence[Point]) -> None:
    """Write the phases' names below the curve without overlaps, and draw a line at the end of each phase."""
    start, place = 0, -math.inf
    apart = _APART * len(points)
    for name, group in itertools.groupby(points, key=lambda point: point.phase):
        end = start + len(list(group))
        if start:
            axes.axvline(start, color="#9198a1", linewidth=0.6)
        place = max((start + end) / 2, place + apart)
        axes.text(
            place,
            -0.02,
            name,
            ha="right",
            va="top",
            fontsize=7,
            rotation=30,
            transform=axes.get_xaxis_transform(),
        )
        start = end


def page(
    name: str, planned: Planned, verdict: Verdict, search: Search = _NOTHING, largest: Largest | None = None
) -> str:
    """Render a plan as a single HTML page."""
    hardware, found = planned.hardware, spans(planned)
    figures = {
        "memory of an NPU": hardware.memory,
        "bfloat16 operations per second": hardware.flops,
        "its memory, bytes per second": hardware.bandwidth,
        "links in a node, bytes per second": hardware.link,
        "links between nodes, bytes per second": hardware.network,
        "host, bytes per second": hardware.host,
    }
    return render(
        "plan.html",
        name=name,
        planned=planned,
        verdict=verdict,
        search=search,
        largest=largest,
        spans=(*found, total(found, planned.servers)),
        figures=figures,
        sentences=(*assumptions(planned), *planned.notes),
        svg=_svg,
    )
