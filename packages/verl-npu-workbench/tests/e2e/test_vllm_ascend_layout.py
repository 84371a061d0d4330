"""The layout of experts and sparse attention in the installed vllm-ascend, under the torch_npu of its environment.

It runs where VERL_NPU_VLLM_ASCEND names the Pythons of environments, with the torch_npu wheel where one is installed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from . import serving

pytestmark = pytest.mark.e2e

PROGRAM = Path(__file__).with_name("vllm_ascend_layout.py")
SQUARE = {"square w13": "w13_weight", "square w2": "w2_weight"}


@pytest.fixture(scope="module")
def layout(python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return serving.answer(PROGRAM, folder=tmp_path_factory.mktemp("layout"), by=python)


@pytest.fixture(scope="module")
def counts_itself(python: str) -> bool:
    """Return whether this release records which experts it has transposed: later ones transpose each time."""
    return Version(serving.engine_of(python).vllm_ascend) < Version("0.13.0")


def test_experts_that_it_has_transposed_and_that_are_square_are_refused(layout: dict[str, Any]) -> None:
    for name, weight in SQUARE.items():
        assert layout[name]["before"] is None
        assert f"experts.{weight}: expected experts that are not square" in layout[name]["after"]
    assert layout["none is square"]["after"] is None


def test_those_that_are_laid_out_before_each_load_are_taken_if_they_can_be(
    layout: dict[str, Any], counts_itself: bool
) -> None:
    assert {name: layout[name]["laid out before each load"] is not None for name in SQUARE} == dict.fromkeys(
        SQUARE, counts_itself
    )


def test_laid_out_experts_are_bit_for_bit_what_the_loader_expects(layout: dict[str, Any], counts_itself: bool) -> None:
    found = {name: layout[name]["is as the loader expects"] for name in (*SQUARE, "none is square")}
    assert found == dict.fromkeys(found, not counts_itself)


def test_sparse_attention_follows_new_weights_or_is_refused(layout: dict[str, Any], counts_itself: bool) -> None:
    assert layout["freed"] is not counts_itself
    assert ("freed it after loading" in (layout["refused"] or "")) is layout["freed"]
    assert layout["copies follow"] is (None if layout["freed"] else True)
