"""Verdicts follow the behavior of the source, not its words."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .by_hand import EDITS, Edit
from .losses import Pin

# One of each way to mislead, on one pin.
DAILY = (
    "the communicator is destroyed in a method",
    "a block for type checkers of a device",
    "the device is set in a function",
    "an import of the module of the padding",
    "what main_ppo imports is gone",
    "a body that raises",
)
_DROPPED = "that its result is used is not asked"
MISJUDGED = {
    "what the platform names is not used": _DROPPED,
    "what the platform names is used at times": _DROPPED,
    "GPUs are asked for all the same": _DROPPED,
    "a function of no name in a thread": "a call in a function that is passed on counts as a call",
    "only the error of a budget": "what else is done under the condition of an error is not asked",
    "the flag of a module": "only an import of the function itself counts",
}
"""The edits with a wrong verdict, and why."""
NIGHTLY = pytest.mark.nightly("patches", "verl_npu/registry", "verl_npu/features")


@pytest.mark.parametrize(
    "edit", [pytest.param(edit, id=str(edit), marks=() if edit.name in DAILY else NIGHTLY) for edit in EDITS]
)
def test_a_verdict_follows_what_is_done(edit: Edit, pin: Callable[[str], Pin]) -> None:
    here = pin(edit.pin)
    judged = here.judged(edit.of(here.upstream))
    said = {patch: judged.verdicts[patch] for patch in edit.patches}
    wrong = {patch: verdict for patch, verdict in said.items() if verdict.state not in edit.states}
    assert bool(wrong) is (edit.name in MISJUDGED), wrong
