"""Shows the result of a comparison as lines, and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_npu.language import gettext as _


def lines_of(result: Mapping[str, Any]) -> Sequence[str]:
    """Return the result as human-readable lines, starting with the first bad operator and its cause."""
    first, cause, apart = result["first"], result["cause"], result["numbers"]
    found: list[str] = []
    if first:
        said = _("{side}, {operator}: {verdict}. Its error is {error:.1e}; rounding gives {rounding:.1e}.")
        unknown = _("Cause: unknown. Nothing that was tried explains it.")
        found += [said.format(**first), _("Cause: {reason}: {said}.").format(**cause) if cause else unknown]
    else:
        found.append(_("No operator differs by more than rounding."))
    if apart:
        said = _(
            "kl {k1:.2e} (k1), {k3:.2e} (k3); probabilities differ by {mean_difference:.2e} on average, by at most "
            "{max_difference:.2e}, and by more than 0.1 for {beyond:.1%} of {tokens} tokens; effective sample size "
            "{effective:.1%}"
        )
        found.append(said.format(**apart))
    if result["remaining"]:
        said = _("kl {k3:.2e} (k3) remains if the reference computes with this cause")
        found.append(said.format(**result["remaining"]))
    counts = _(", ").join(
        _("{name}: {count}").format(name=name, count=len(side["operators"])) for name, side in result["sides"].items()
    )
    found.append(_("Operators compared: {counts}.").format(counts=counts))
    return found


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw the error of the residual stream at each layer, and save the plot as a PNG file.

    The plot has a curve for each side (trainer or engine) whose residual stream was recorded. A shaded band shows the
    error that rounding alone would cause.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
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
    axes.set(yscale="log", xlabel=_("before the layer"))
    axes.set_title(_("error of the residual stream, relative to float64"), fontsize=10)
    axes.grid(color="#d0d1d2", linewidth=0.6)
    axes.legend(fontsize=8, frameon=False)
    figure.savefig(path, format="png", dpi=110)
