"""Verdicts follow the behavior of the source, not its words."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from verl_npu.registry.source.tree import SourceTree

from .by_hand import EDITS, Edit
from .losses import Pin, pin_at

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


@pytest.fixture(scope="module")
def pin(sources: Callable[[str, str], list[Path]]) -> Callable[[str], Pin]:
    beside = SourceTree.at(sources("transformers", "4.57.6")[0], ("transformers",))

    @cache
    def find(name: str) -> Pin:
        return pin_at(name, sources("verl", name)[0], beside)

    return find


@pytest.mark.parametrize(
    "edit", [pytest.param(edit, id=str(edit), marks=() if edit.name in DAILY else NIGHTLY) for edit in EDITS]
)
def test_a_verdict_follows_what_is_done(edit: Edit, pin: Callable[[str], Pin]) -> None:
    here = pin(edit.pin)
    judged = here.judged(edit.of(here.upstream))
    said = {patch: judged.verdicts[patch] for patch in edit.patches}
    assert {patch: verdict for patch, verdict in said.items() if verdict.state not in edit.states} == {}
