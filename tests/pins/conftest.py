"""The pins of verl, for tests that judge changed trees."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from verl_npu.registry.source.tree import SourceTree

from .losses import Pin, pin_at


@pytest.fixture(scope="module")
def pin(sources: Callable[[str, str], list[Path]]) -> Callable[[str], Pin]:
    """Return a function that finds the pin of a name; transformers 4.57.6 is beside it."""
    beside = SourceTree.at(sources("transformers", "4.57.6")[0], ("transformers",))

    @cache
    def find(name: str) -> Pin:
        return pin_at(name, sources("verl", name)[0], beside)

    return find
