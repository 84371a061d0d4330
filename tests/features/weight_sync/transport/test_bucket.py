"""Tensors divided into messages."""

from __future__ import annotations

import torch

from verl_npu.features.weight_sync.transport.plan import ALIGNMENT, divide, find_tied, views
from verl_npu.features.weight_sync.transport.tensors import Metadata


def metadata(**sizes: int) -> Metadata:
    return Metadata.of((name, (size,), torch.uint8) for name, size in sizes.items())


def test_small_tensors_share_a_bucket_that_stays_below_its_limit() -> None:
    first, second = divide(metadata(a=1000, b=1000, c=1000), {}, 3000)
    assert (first.names, first.offsets, first.nbytes) == (["a", "b"], (0, 1024), 2024)
    assert second.names == ["c"]
    assert all(offset % ALIGNMENT == 0 for offset in first.offsets)


def test_a_large_tensor_goes_by_itself_in_its_place() -> None:
    buckets = divide(metadata(a=10, large=9000, b=10), {}, 4096)
    assert [(bucket.names, bucket.direct) for bucket in buckets] == [(["a"], False), (["large"], True), (["b"], False)]


def test_what_has_no_bytes_of_its_own_is_drawn_and_not_sent() -> None:
    (bucket,) = divide(metadata(a=10, tied=10, empty=0, b=10), {"tied": "a"}, 4096)
    assert bucket.names == ["a", "b"]
    assert [spec.name for spec in bucket.drawn] == ["a", "tied", "empty", "b"]


def test_views_are_the_tensors_that_were_packed() -> None:
    given = {"a": torch.randn(3, 5), "b": torch.tensor(True), "c": torch.arange(7, dtype=torch.int16)}
    (bucket,) = divide(Metadata.of((n, t.shape, t.dtype) for n, t in given.items()), {}, 1 << 20)
    buffer = torch.zeros(bucket.nbytes, dtype=torch.uint8)
    for view, tensor in zip(views(bucket, buffer), given.values(), strict=True):
        view.copy_(tensor)
    assert all(torch.equal(v, t) for v, t in zip(views(bucket, buffer), given.values(), strict=True))


def test_only_names_of_one_piece_of_memory_are_tied() -> None:
    weight = torch.randn(4, 4)
    given = {"a": weight, "same": weight, "transposed": weight.t(), "half": weight[:2], "copy": weight.clone()}
    assert find_tied(given.items()) == {"same": "a"}
