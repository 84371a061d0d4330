"""The forty settings by the formula alone: twenty on each side of the memory, and none near it."""

from __future__ import annotations

import pytest

from verl_npu.plan.published import PUBLISHED

from . import forty
from .by_hand import MARGIN, MEMORY, Setting, needed, parameters


def test_there_are_twenty_of_each() -> None:
    assert (len(forty.FITTING), len(forty.NOT_FITTING)) == (20, 20)


@pytest.mark.parametrize("setting", forty.FITTING, ids=lambda setting: setting.name)
def test_it_fits_by_hand(setting: Setting) -> None:
    assert needed(setting) < (1 - MARGIN) * MEMORY[setting.npu]


@pytest.mark.parametrize("setting", forty.NOT_FITTING, ids=lambda setting: setting.name)
def test_it_does_not_fit_by_hand(setting: Setting) -> None:
    assert needed(setting) > (1 + MARGIN) * MEMORY[setting.npu]


@pytest.mark.parametrize(
    "name",
    [
        "npu",
        "strategy",
        "recompute",
        "critic",
        "reference",
        "offload",
        "ulysses",
        "budget",
        "entropy",
        "chunked",
        "lora",
    ],
)
def test_they_differ_in_what_decides(name: str) -> None:
    assert len({getattr(setting, name) for setting in (*forty.FITTING, *forty.NOT_FITTING)}) > 1


def test_parameters_by_hand_are_those_that_pages_name() -> None:
    named = {each.name.lower(): each.billions for each in PUBLISHED}
    for setting in (*forty.FITTING, *forty.NOT_FITTING):
        published = named.get(setting.name.split(",")[0].split(" ")[0].lower())
        if published is not None:
            assert parameters(setting.model) / 1e9 == pytest.approx(published, rel=0.03)
