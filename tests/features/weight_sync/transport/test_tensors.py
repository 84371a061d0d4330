"""Tensors of a sync: the messages in which ranks describe them, how they are packed, and digests of their bytes."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_npu.errors import SettingError, WeightSyncError
from verl_npu.features.weight_sync.transport.plan import ALIGNMENT, divide, find_tied, views
from verl_npu.features.weight_sync.transport.tensors import Metadata, digest_of, disagreement

A = ("a", torch.Size([2, 3]), torch.bfloat16)
B = ("b", torch.Size([]), torch.bool)


def describe(rank: int) -> str:
    return f"rank {rank}"


def test_metadata_survives_the_way_over_the_store() -> None:
    made = Metadata.of([A, B])
    read = Metadata.from_json(made.as_json())
    assert (read.digest, read.specs) == (made.digest, made.specs)
    assert [spec.nbytes for spec in read] == [12, 1]


def test_ranks_that_agree_are_not_refused() -> None:
    assert disagreement({0: Metadata.of([A, B]), 3: Metadata.of([A, B])}, describe) is None


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ([A], "b: on rank 0, but not on rank 1"),
        ([A, B, ("c", (1,), torch.int8)], "c: on rank 1, but not on rank 0"),
        ([("a", (3, 2), torch.bfloat16), B], "a: rank 0 has bfloat16[2, 3], rank 1 has bfloat16[3, 2]"),
        ([A, ("b", (), torch.uint8)], "b: rank 0 has bool[], rank 1 has uint8[]"),
        ([B, A], "parameter 0 is a on rank 0, b on rank 1"),
    ],
)
def test_what_differs_is_named(other: list, said: str) -> None:
    text = disagreement({0: Metadata.of([A, B]), 1: Metadata.of(other)}, describe)
    assert text is not None
    assert said in text


def test_a_name_that_comes_twice_is_refused() -> None:
    with pytest.raises(WeightSyncError, match="several parameters have the same name: a"):
        Metadata.of([A, A])


# Messages.


def metadata_of(**sizes: int) -> Metadata:
    return Metadata.of((name, (size,), torch.uint8) for name, size in sizes.items())


def test_small_tensors_share_a_bucket_that_stays_below_its_limit() -> None:
    first, second = divide(metadata_of(a=1000, b=1000, c=1000), {}, 3000)
    assert (first.names, first.offsets, first.nbytes) == (["a", "b"], (0, 1024), 2024)
    assert second.names == ["c"]
    assert all(offset % ALIGNMENT == 0 for offset in first.offsets)


def test_a_large_tensor_goes_by_itself_in_its_place() -> None:
    buckets = divide(metadata_of(a=10, large=9000, b=10), {}, 4096)
    assert [(bucket.names, bucket.direct) for bucket in buckets] == [(["a"], False), (["large"], True), (["b"], False)]


def test_what_has_no_bytes_of_its_own_is_drawn_and_not_sent() -> None:
    (bucket,) = divide(metadata_of(a=10, tied=10, empty=0, b=10), {"tied": "a"}, 4096)
    assert bucket.names == ["a", "b"]
    assert [spec.name for spec in bucket.drawn] == ["a", "tied", "empty", "b"]


def test_views_are_the_tensors_that_were_packed() -> None:
    sent = {"a": torch.randn(3, 5), "b": torch.tensor(True), "c": torch.arange(7, dtype=torch.int16)}
    (bucket,) = divide(Metadata.of((n, t.shape, t.dtype) for n, t in sent.items()), {}, 1 << 20)
    buffer = torch.zeros(bucket.nbytes, dtype=torch.uint8)
    for view, tensor in zip(views(bucket, buffer), sent.values(), strict=True):
        view.copy_(tensor)
    assert all(torch.equal(v, t) for v, t in zip(views(bucket, buffer), sent.values(), strict=True))


def test_only_names_of_one_piece_of_memory_are_tied() -> None:
    weight = torch.randn(4, 4)
    sent = {"a": weight, "same": weight, "transposed": weight.t(), "half": weight[:2], "copy": weight.clone()}
    assert find_tied(sent.items()) == {"same": "a"}


# Digests.

# Lengths around those at which XXH3 changes its algorithm.
LENGTHS = st.one_of(st.integers(1, 40), st.sampled_from([128, 129, 240, 241, 1024, 1025, 16384 * 64 + 3]))


def random_bytes(length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (length,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=60)
@given(LENGTHS, st.data())
def test_a_changed_byte_changes_the_digest(length: int, data: st.DataObject) -> None:
    tensor = random_bytes(length)
    before = digest_of(tensor)
    place = data.draw(st.integers(0, length - 1))
    tensor[place] ^= 1 << data.draw(st.integers(0, 7))
    assert digest_of(tensor) != before


@settings(max_examples=60)
@given(LENGTHS.filter(lambda length: length > 1), st.data())
def test_two_exchanged_bytes_change_the_digest(length: int, data: st.DataObject) -> None:
    tensor = random_bytes(length)
    first, second = data.draw(st.lists(st.integers(0, length - 1), min_size=2, max_size=2, unique=True))
    if tensor[first] == tensor[second]:
        tensor[first] += 1
    before = digest_of(tensor)
    tensor[[first, second]] = tensor[[second, first]].clone()
    assert digest_of(tensor) != before


def test_pairs_of_changed_signs_change_the_digest() -> None:
    tensor = torch.randn(64, dtype=torch.bfloat16)
    changed = tensor.clone()
    changed[3::4] *= -1
    assert digest_of(changed) != digest_of(tensor)


@pytest.mark.parametrize("length", [0, 1, 3, 4, 16384])
def test_one_more_zero_changes_the_digest(length: int) -> None:
    zeros = torch.zeros(length + 1, dtype=torch.uint8)
    assert digest_of(zeros[:-1]) != digest_of(zeros)


@pytest.mark.parametrize("tensor", [torch.randn(8, 6).T, torch.randn(100)[3:], torch.randn(9).bfloat16()[1:]])
def test_a_view_has_the_digest_of_a_copy(tensor: torch.Tensor) -> None:
    assert digest_of(tensor) == digest_of(tensor.contiguous().clone())


def test_the_shape_and_the_dtype_do_not_matter() -> None:
    tensor = torch.randn(4, 6)
    assert digest_of(tensor) == digest_of(tensor.view(3, 8)) == digest_of(tensor.view(torch.int32))


def test_without_xxhash_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    monkeypatch.setenv("VERL_NPU_WEIGHT_SYNC_CHECK", "engine")
    with pytest.raises(SettingError, match=r"VERL_NPU_WEIGHT_SYNC_CHECK=engine: .*; run `pip install xxhash`"):
        digest_of(torch.ones(3))
