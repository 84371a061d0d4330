"""A digest tells tensors apart by their bytes, and by nothing else."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_npu.errors import SettingError
from verl_npu.features.weight_sync.transport.tensors import Digest, digest_of

# Around the lengths at which XXH3 takes another way.
LENGTHS = st.one_of(st.integers(1, 40), st.sampled_from([128, 129, 240, 241, 1024, 1025, 16384 * 64 + 3]))


def of_bytes(length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (length,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=60)
@given(LENGTHS, st.data())
def test_a_byte_that_changes_changes_it(length: int, data: st.DataObject) -> None:
    tensor = of_bytes(length)
    before = digest_of(tensor)
    place = data.draw(st.integers(0, length - 1))
    tensor[place] ^= 1 << data.draw(st.integers(0, 7))
    assert digest_of(tensor) != before


@settings(deadline=None, max_examples=60)
@given(LENGTHS.filter(lambda length: length > 1), st.data())
def test_two_bytes_that_trade_places_change_it(length: int, data: st.DataObject) -> None:
    tensor = of_bytes(length)
    first, second = data.draw(st.lists(st.integers(0, length - 1), min_size=2, max_size=2, unique=True))
    if tensor[first] == tensor[second]:
        tensor[first] += 1
    before = digest_of(tensor)
    tensor[[first, second]] = tensor[[second, first]].clone()
    assert digest_of(tensor) != before


def test_signs_that_change_in_pairs_change_it() -> None:
    tensor = torch.randn(64, dtype=torch.bfloat16)
    changed = tensor.clone()
    changed[3::4] *= -1
    assert digest_of(changed) != digest_of(tensor)


@pytest.mark.parametrize("length", [0, 1, 3, 4, 16384])
def test_a_zero_more_changes_it(length: int) -> None:
    zeros = torch.zeros(length + 1, dtype=torch.uint8)
    assert digest_of(zeros[:-1]) != digest_of(zeros)


@pytest.mark.parametrize("tensor", [torch.randn(8, 6).T, torch.randn(100)[3:], torch.randn(9).bfloat16()[1:]])
def test_a_view_has_the_digest_of_a_copy(tensor: torch.Tensor) -> None:
    assert digest_of(tensor) == digest_of(tensor.contiguous().clone())


def test_the_shape_and_the_dtype_do_not_matter() -> None:
    tensor = torch.randn(4, 6)
    assert digest_of(tensor) == digest_of(tensor.view(3, 8)) == digest_of(tensor.view(torch.int32))


def test_the_sum_of_many_tensors_tells_their_names_and_their_order() -> None:
    a, b = torch.ones(3), torch.zeros(3)

    def of(*items: tuple[str, torch.Tensor]) -> str:
        digest = Digest()
        for name, tensor in items:
            digest.add(name, tensor)
        return str(digest)

    assert len({of(("a", a), ("b", b)), of(("b", b), ("a", a)), of(("a", b), ("b", a)), of(("a", a))}) == 4
    assert of(("a", a), ("b", b)) == of(("a", a.clone()), ("b", b.clone()))


def test_without_xxhash_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    monkeypatch.setenv("VERL_NPU_WEIGHT_SYNC_CHECK", "engine")
    with pytest.raises(SettingError, match=r"VERL_NPU_WEIGHT_SYNC_CHECK=engine: .*; pip install xxhash"):
        digest_of(torch.ones(3))
