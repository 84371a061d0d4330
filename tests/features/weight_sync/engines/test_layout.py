"""The shares of all ranks, computed from the sizes of a layer, together make up the weight."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from testing import layers

from verl_npu.features.weight_sync.engines.layout import Section, sections_of

RANKS = 4
Make = Callable[[int], Any]
LAYERS: dict[str, Make] = {
    "columns": lambda rank: layers.ColumnParallelLinear(3, 8, rank, RANKS),
    "merged columns": lambda rank: layers.MergedColumnParallelLinear(3, [8, 12], rank, RANKS),
    "rows": lambda rank: layers.RowParallelLinear(8, 3, rank, RANKS),
    "queries, keys and values": lambda rank: layers.QKVParallelLinear(3, 8, 4, 2, rank, RANKS),
    "a vocabulary": lambda rank: layers.VocabParallelEmbedding(10, 16, 3, rank, RANKS),
}


def sections(make: Make) -> list[tuple[Section, ...]]:
    found = [sections_of(make(rank), "weight") for rank in range(RANKS)]
    assert all(each is not None for each in found)
    return [each for each in found if each is not None]


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_together_they_are_the_whole(make: Make) -> None:
    of_ranks = sections(make)
    for number, section in enumerate(of_ranks[0]):
        assert section.share is not None
        shape = [section.rows, 8]
        whole = torch.arange(section.rows * 8).view(shape)
        shares = [each[number].share for each in of_ranks]
        assert torch.cat([share.of(whole) for share in shares if share], section.share.dim).equal(whole)


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_the_shares_of_others_are_those_that_they_hold(make: Make) -> None:
    first, second = (found[0].share for found in sections(make)[:2])
    assert first is not None
    assert second is not None
    whole = torch.arange(96).view(12, 8)
    assert first.others(whole)[1].equal(second.of(whole))
    assert 0 not in first.others(whole)


@pytest.mark.parametrize(("rank", "head"), [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_ranks_share_a_head_of_keys_if_there_are_fewer_than_ranks(rank: int, head: int) -> None:
    found = sections_of(layers.QKVParallelLinear(3, 8, 2, 2, rank, RANKS), "weight")
    assert found is not None
    keys = found[1].share
    assert keys is not None
    assert keys.of(torch.arange(4)).tolist() == [2 * head, 2 * head + 1]


def test_a_rank_behind_the_end_of_the_vocabulary_holds_none_of_it() -> None:
    (section,) = sections(LAYERS["a vocabulary"])[3]
    assert section.share is not None
    assert section.share.of(torch.zeros(10, 3)).shape == (0, 3)


def test_the_bias_of_rows_is_whole_on_each_rank() -> None:
    assert sections_of(layers.RowParallelLinear(8, 3, 1, RANKS), "bias") == (Section(3, None),)


def test_a_layer_without_a_rank_of_its_own_asks_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm: Any = ModuleType("vllm.distributed")
    vllm.get_tensor_model_parallel_rank = lambda: 3
    monkeypatch.setitem(__import__("sys").modules, "vllm.distributed", vllm)
    layer = layers.ColumnParallelLinear(3, 8, 0, RANKS)
    del layer.tp_rank
    ((share),) = [section.share for section in sections_of(layer, "weight") or ()]
    assert share is not None
    assert share.index == 3


def test_any_other_layer_is_not_divided() -> None:
    assert sections_of(torch.nn.LayerNorm(3), "weight") is None
