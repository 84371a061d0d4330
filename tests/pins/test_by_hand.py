"""Verdicts follow the behavior of the source, not its words."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .by_hand import EDITS, Edit
from .losses import Pin

# One of each way to mislead; together they read eight trees.
DAILY = (
    "the default device is a constant of the module",
    "another way into a thread",
    "the communicator is destroyed in a method",
    "a block for type checkers of a device",
    "the device is set in a function",
    "an import of the module of the padding",
    "what main_ppo imports is gone",
    "a body that raises",
)
NIGHTLY = pytest.mark.nightly("patches", "verl_npu/registry", "verl_npu/features")


@pytest.mark.parametrize(
    "edit", [pytest.param(edit, id=str(edit), marks=() if edit.name in DAILY else NIGHTLY) for edit in EDITS]
)
def test_a_verdict_follows_what_is_done(edit: Edit, pin: Callable[[str], Pin]) -> None:
    here = pin(edit.pin)
    judged = here.judged(edit.of(here.upstream))
    said = {patch: judged.verdicts[patch] for patch in edit.patches}
    assert {patch: verdict for patch, verdict in said.items() if verdict.state not in edit.states} == {}
