"""Counting the layers of mixture of experts beside an older Megatron."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest

from verl_npu.features.megatron.patches.routing import ask_megatron_only_for_the_offset_that_it_knows

EVERY_SECOND = SimpleNamespace(layers=6)
"""Six layers on this stage, of which each second one is of experts."""


def megatron_0_12_0(config: object) -> int:
    return 3


def megatron_0_12_1(config: object, pp_rank: int | None = None) -> int:
    return 3 if pp_rank is None else 3 + pp_rank


def megatron_0_16(config: object, vp_stage: int | None = None, pp_rank: int | None = None) -> int:
    raise AssertionError("upstream's own function calls it")


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., int]], None]:
    """Put upstream's module into place, with the offset of some Megatron."""

    def put(offset: Callable[..., int]) -> None:
        replay = ModuleType("verl.utils.megatron.router_replay_utils")
        vars(replay).update(
            get_transformer_layer_offset=offset,
            get_num_layers_to_build=lambda config, vp_stage, pp_rank: config.layers,
            is_moe_layer=lambda config, index: index % 2 == 0,
        )
        for name in ("verl", "verl.utils", "verl.utils.megatron"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setitem(sys.modules, replay.__name__, replay)
        vars(sys.modules["verl.utils.megatron"])["router_replay_utils"] = replay

    return put


def upstreams(config: SimpleNamespace, vp_stage: int | None = None, pp_rank: int | None = None) -> int:
    return 100


@pytest.mark.parametrize("offset", [megatron_0_12_0, megatron_0_12_1])
def test_an_older_megatron_is_asked_without_the_stage(offset: Callable[..., int], beside) -> None:
    beside(offset)
    assert ask_megatron_only_for_the_offset_that_it_knows(upstreams, EVERY_SECOND) == len([4, 6, 8])


def test_a_rank_is_passed_on_where_it_is_known(beside) -> None:
    beside(megatron_0_12_1)
    one = SimpleNamespace(layers=1)
    assert [ask_megatron_only_for_the_offset_that_it_knows(upstreams, one, pp_rank=rank) for rank in (0, 1)] == [0, 1]


def test_a_newer_megatron_is_left_to_upstream(beside) -> None:
    beside(megatron_0_16)
    assert ask_megatron_only_for_the_offset_that_it_knows(upstreams, EVERY_SECOND, vp_stage=1) == 100
