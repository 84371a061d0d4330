"""The forty settings, and jobs of fine-tuning, by the formula alone: on both sides of the memory, and none near it."""

from __future__ import annotations

import pytest

from verl_npu.tools.plan.model import PUBLISHED

from . import forty
from .by_hand import MARGIN, MEMORY, Setting, needed, parameters
from .fine_tuning_by_hand import FITTING as TUNING_FITTING
from .fine_tuning_by_hand import NOT_FITTING as TUNING_NOT_FITTING
from .fine_tuning_by_hand import Tuning
from .fine_tuning_by_hand import needed as tuning_needed


def test_there_are_twenty_of_each() -> None:
    assert (len(forty.FITTING), len(forty.NOT_FITTING)) == (20, 20)


@pytest.mark.parametrize("setting", [*forty.FITTING, *TUNING_FITTING], ids=lambda setting: setting.name)
def test_it_fits_by_hand(setting: Setting | Tuning) -> None:
    assert _needed(setting) < (1 - MARGIN) * MEMORY[setting.npu]


@pytest.mark.parametrize("setting", [*forty.NOT_FITTING, *TUNING_NOT_FITTING], ids=lambda setting: setting.name)
def test_it_does_not_fit_by_hand(setting: Setting | Tuning) -> None:
    assert _needed(setting) > (1 + MARGIN) * MEMORY[setting.npu]


def _needed(setting: Setting | Tuning) -> float:
    return tuning_needed(setting) if isinstance(setting, Tuning) else needed(setting)


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
