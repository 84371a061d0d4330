"""What ranks tell one another about their tensors, and what they say where it differs."""

from __future__ import annotations

import pytest
import torch

from verl_npu.errors import MetadataError
from verl_npu.features.weight_sync.transport.tensors import Metadata, disagreement

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
        ([A], "b: rank 0 has it, rank 1 has not"),
        ([A, B, ("c", (1,), torch.int8)], "c: rank 1 has it, rank 0 has not"),
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
    with pytest.raises(MetadataError, match="found more than once: a"):
        Metadata.of([A, A])
