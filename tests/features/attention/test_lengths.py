"""Lengths are computed once for each tensor, and again after its contents change."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from verl_npu.features.attention.lengths import Once, packing, unpadding  # noqa: E402


@pytest.fixture
def once() -> Once:
    made = Once(lambda tensor: computed.append(tensor.tolist()) or tensor.sum().item())
    computed: list[Any] = []
    made_by[id(made)] = computed
    return made


made_by: dict[int, list[Any]] = {}


def count(once: Once) -> int:
    return len(made_by[id(once)])


def test_the_same_tensor_is_computed_once(once) -> None:
    tensor = torch.tensor([1, 2])
    assert [once(tensor) for _ in range(5)] == [3] * 5
    assert count(once) == 1


def test_a_detached_alias_is_the_same(once) -> None:
    tensor = torch.tensor([1.0, 2.0], requires_grad=True)
    once(tensor)
    once(tensor.detach())
    assert count(once) == 1


def test_a_tensor_that_changed_is_another(once) -> None:
    tensor = torch.tensor([1, 2])
    once(tensor)
    tensor[0] = 5
    assert once(tensor) == 7


def test_a_part_of_a_tensor_is_another(once) -> None:
    tensor = torch.tensor([1, 2, 3])
    assert (once(tensor), once(tensor[:2])) == (6, 3)


def test_memory_that_is_used_again_is_another(once) -> None:
    memory = torch.zeros(2)
    first = torch.from_numpy(memory.numpy())
    once(first)
    del first
    gc.collect()
    memory.numpy()[:] = 4  # past torch, whose version counter misses it
    assert once(torch.from_numpy(memory.numpy())) == 8


def test_a_result_goes_with_its_tensor() -> None:
    places = Once(lambda tensor: tensor.nonzero())
    mask = torch.ones(4)
    result = weakref.ref(places(mask))
    assert result() is not None
    del mask
    assert result() is None


def test_a_result_stays_if_an_older_tensor_of_the_same_memory_goes(once) -> None:
    memory = torch.zeros(2)
    first, second = torch.from_numpy(memory.numpy()), torch.from_numpy(memory.numpy())
    once(first)
    entry = next(iter(once._results))
    older = once._results[entry][0]
    del once._results[entry]
    once(second)
    del first
    assert older() is None
    once(second)
    assert count(once) == 2


def test_inference_tensors_are_computed_every_time(once) -> None:
    with torch.inference_mode():
        tensor = torch.tensor([1, 2])
    once(tensor)
    once(tensor)
    assert count(once) == 2


def test_only_so_many_are_kept(once) -> None:
    tensors = [torch.tensor([n]) for n in range(40)]
    for tensor in tensors:
        once(tensor)
    assert len(once._results) == 16


def test_packed_positions_say_where_sequences_begin() -> None:
    found = packing(torch.tensor([[0, 1, 2, 0, 0, 1]]))
    assert (found.cu_seqlens.tolist(), found.longest) == ([0, 3, 4, 6], 3)
    assert (found.increasing, found.consecutive) == (False, False)
    assert found.cu_seqlens.dtype == torch.int32


def test_sequences_may_begin_with_another_position_than_0() -> None:
    # RoBERTa's positions begin after the padding; transformers from 5.15 on sees them as well.
    found = packing(torch.tensor([[2, 3, 4, 2, 3]]))
    assert (found.cu_seqlens.tolist(), found.longest) == ([0, 3, 5], 3)


@pytest.mark.parametrize(
    ("positions", "increasing", "consecutive"), [([0, 1, 2], True, True), ([0, 0, 1], True, False)]
)
def test_positions_of_one_sequence(positions: list[int], increasing: bool, consecutive: bool) -> None:
    found = packing(torch.tensor([positions]))
    assert (found.increasing, found.consecutive) == (increasing, consecutive)


def test_a_mask_says_what_is_kept() -> None:
    indices, cu_seqlens, longest = unpadding(torch.tensor([[0, 1, 1], [1, 0, 0]]))
    assert (indices.tolist(), cu_seqlens.tolist(), longest) == ([1, 2, 3], [0, 2, 3], 2)


def test_a_mask_that_keeps_nothing_gives_nothing() -> None:
    indices, cu_seqlens, longest = unpadding(torch.zeros(2, 3, dtype=torch.long))
    assert (indices.tolist(), cu_seqlens.tolist(), longest) == ([], [0, 0, 0], 0)
