"""Renders a proof as one HTML page."""

from __future__ import annotations

from ..pages import render
from .bundle import Proof
from .table import BY_NAME


def page(proof: Proof) -> str:
    """Render a proof as an HTML page."""
    titles = {stage.name: BY_NAME[stage.name].title if stage.name in BY_NAME else "" for stage in proof.stages}
    return render("proof.html", proof=proof, titles=titles)
