"""Which MindSpeed and which Megatron upstream's documents name for each pin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["DOCUMENTED", "NEWEST", "RECIPES", "Documented", "revision_for"]

NEWEST = "core_r0.16.0"
"""The newest recorded revision of MindSpeed."""


@dataclass(frozen=True, slots=True)
class Documented:
    """A recorded revision of MindSpeed, and where upstream names it."""

    revision: str
    source: str
    """A file of verl's at that pin."""


DOCUMENTED: Mapping[str, Documented] = {
    # It names the branch master; this is master of the weeks in which the pin was made.
    "796871d7": Documented("1cdd0abd75", "docs/ascend_tutorial/ascend_quick_start.rst"),
    "v0.6.1": Documented("f2b0977e", "docs/ascend_tutorial/dockerfile_build_guidance.rst"),
    "ccd7d934": Documented("f2b0977e", "docs/ascend_tutorial/ascend_quick_start.rst"),
    "v0.7.0": Documented("f2b0977e", "docs/ascend_tutorial/ascend_quick_start.rst"),
    "v0.7.1": Documented("2.3.0_core_r0.12.1", "docs/ascend_tutorial/ascend_quick_start.rst"),
    "v0.8.0": Documented("core_r0.16.0", "docs/ascend_tutorial/get_start/install_guidance.rst"),
    "v0.9.0": Documented("core_r0.16.0", "docs/ascend_tutorial/get_start/install_guidance.rst"),
    "v0.9.1": Documented("core_r0.16.0", "docs/ascend_tutorial/get_start/install_guidance.rst"),
    "1dda039b": Documented("core_r0.16.0", "docs/ascend_tutorial/get_start/install_guidance.rst"),
}
RECIPES: Mapping[str, Documented] = {"recipe.r1_ascend": Documented("f6688", "recipe/r1_ascend/README.md")}
"""The recipes whose documents name another one than the pin's, by the package that their scripts start."""


def revision_for(pin: str, text: str = "") -> str:
    """Return the recorded revision that a pin's documents name; for a recipe in `text`, the one that the recipe's do.

    Raises KeyError for an unknown pin.
    """
    recipe = next((documented for package, documented in RECIPES.items() if package in text), None)
    return (recipe or DOCUMENTED[pin]).revision
