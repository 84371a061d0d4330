"""A picture of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_npu.language import gettext as _


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw the error of the residual stream at each layer into a PNG file.

    Each side whose stream was recorded is drawn, with a band that marks rounding.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    # With graphs, only outputs are recorded.
    drawn = [(name, side) for name, side in result["sides"].items() if side["streams"]]
    for (name, side), colour in zip(drawn, ("#b45309", "#0b62d6"), strict=False):
        streams = side["streams"]
        places = [each["name"].removesuffix(".input_layernorm").removeprefix("layers.") for each in streams]
        axes.plot(places, [each["error"] for each in streams], "o-", color=colour, label=name, markersize=3)
        band = [each["rounding"] for each in streams]
        axes.fill_between(
            places,
            [each / result["margin"] for each in band],
            [each * result["margin"] for each in band],
            color=colour,
            alpha=0.15,
            linewidth=0,
            label=_("{side}: rounding in {dtype}").format(side=name, dtype=side["dtype"]),
        )
    axes.set_yscale("log")
    axes.set_xlabel(_("before the layer"))
    axes.set_title(_("error of the residual stream, relative to float64"), fontsize=10)
    axes.grid(color="#d0d1d2", linewidth=0.6)
    axes.legend(fontsize=8, frameon=False)
    figure.savefig(path, format="png", dpi=110)
