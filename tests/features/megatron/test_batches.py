"""Batches that stay on the host while upstream's Megatron actor of 796871d7 computes with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from verl_npu.features.megatron import batches
from verl_npu.features.megatron.batches import (
    broadcast_through_the_npu,
    hold_the_batch,
    keep_mini_batches_on_the_host,
    move_micro_batches,
    take_the_held_batch,
)

torch = pytest.importorskip("torch")
tensordict = pytest.importorskip("tensordict")
NPU = "meta"
"""A device that shows which code moves data to it."""


@dataclass
class Data:
    """A stand-in for verl's DataProto."""

    batch: Any
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    def to(self, device: str) -> Data:
        self.batch = self.batch.to(device)
        return self


def data(rows: int = 4) -> Data:
    ids = torch.arange(rows * 6).reshape(rows, 6)
    return Data(tensordict.TensorDict({"input_ids": ids, "responses": ids[:, 4:]}, batch_size=[rows]))


@pytest.fixture(autouse=True)
def npu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_device", lambda: NPU)


def computed(given: Data, made: Callable[[Any], Any] = lambda batch: batch.split(2), chunks: int = 1) -> list[Any]:
    """Return the micro-batches that the forward passes get when upstream moves a batch and computes with it."""

    def forward_backward_batch(actor: object, given: Data) -> list[Any]:
        def upstreams(micro_batches: Iterable[Any], vpp_size: int) -> Any:
            return iter(micro_batches) if vpp_size == 1 else [iter(micro_batches) for _ in range(vpp_size)]

        broadcast_through_the_npu(refused, given.batch, 0, None)
        found = move_micro_batches(upstreams, made(given.batch), chunks)
        return list(found) if chunks == 1 else [list(each) for each in found]

    return take_the_held_batch(forward_backward_batch, None, given.to(batches._device()))


def refused(*_: object) -> None:
    raise AssertionError("upstream broadcasts a batch of the host")


@pytest.fixture(autouse=True)
def one_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: 1)


def test_upstream_is_given_the_sizes_of_a_batch_and_no_elements() -> None:
    seen = hold_the_batch(lambda worker, given: given.batch, None, data())
    assert {key: tuple(tensor.shape) for key, tensor in seen.items()} == {
        "input_ids": (4, 6, 0),
        "responses": (4, 2, 0),
    }


def test_what_upstream_notes_of_a_batch_is_noted_of_what_it_stands_for() -> None:
    given = data()
    hold_the_batch(lambda worker, empty: empty.meta_info.update(micro_batch_size=2), None, given)
    assert given.meta_info == {"micro_batch_size": 2}


def test_micro_batches_are_on_the_npu_and_their_batch_is_not() -> None:
    given = data()
    seen = hold_the_batch(lambda worker, empty: computed(empty), None, given)
    assert [one.device.type for one in seen] == [NPU, NPU]
    assert given.batch["input_ids"].device.type == "cpu"


def test_each_chunk_of_an_interleaved_pipeline_is_given_all_micro_batches_on_the_npu() -> None:
    seen = hold_the_batch(lambda worker, empty: computed(empty, chunks=2), None, data())
    assert [[one.device.type for one in chunk] for chunk in seen] == [[NPU, NPU], [NPU, NPU]]


def test_a_micro_batch_is_moved_when_it_is_asked_for() -> None:
    taken: list[int] = []

    def one_by_one(batch: Any) -> Iterator[Any]:
        for number, part in enumerate(batch.split(2)):
            taken.append(number)
            yield part

    def forward_backward_batch(actor: object, given: Data) -> None:
        next(move_micro_batches(lambda made, vpp_size: iter(made), one_by_one(given.batch), 1))

    hold_the_batch(lambda worker, empty: take_the_held_batch(forward_backward_batch, None, empty), None, data())
    assert taken == [0]


def test_mini_batches_have_their_own_elements_and_their_notes() -> None:
    def upstreams(actor: object, given: Data) -> Iterator[Data]:
        return (Data(part, meta_info=given.meta_info) for part in given.batch.split(2))

    def update(worker: object, empty: Data) -> list[Any]:
        empty.meta_info["micro_batch_size"] = 1
        minis = list(keep_mini_batches_on_the_host(upstreams, None, empty))
        assert all(mini.batch["input_ids"].numel() == 0 for mini in minis)
        assert minis[0].meta_info == {"micro_batch_size": 1}
        seen: list[Any] = []
        for mini in minis:
            take_the_held_batch(lambda actor, given: seen.append(given.batch["input_ids"]), None, mini.to(NPU))
        return seen

    given = data()
    assert torch.cat(hold_the_batch(update, None, given)).equal(given.batch["input_ids"])


def test_a_batch_of_someone_else_is_computed_where_it_is() -> None:
    given = data()
    broadcast: list[Any] = []

    def forward_backward_batch(actor: object, given: Data) -> list[Any]:
        broadcast_through_the_npu(lambda tensors, src, group: broadcast.append(tensors), given.batch, 0, None)
        return list(move_micro_batches(lambda made, vpp_size: iter(made), given.batch.split(2), 1))

    seen = take_the_held_batch(forward_backward_batch, None, given)
    assert broadcast == [given.batch]
    assert {one["input_ids"].device.type for one in seen} == {"cpu"}


@pytest.fixture
def two_stages(one_stage: None, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Pretend that a second rank has 7 everywhere; return the shapes of the broadcast tensors."""
    shapes: list[tuple[int, ...]] = []

    def broadcast(tensor: Any, **_: object) -> None:
        shapes.append(tuple(tensor.shape))
        tensor.fill_(7)

    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: 2)
    monkeypatch.setattr(torch.distributed, "broadcast", broadcast)
    monkeypatch.setattr(batches, "_device", lambda: "cpu")
    return shapes


def test_a_pipelines_stages_compute_with_what_its_last_stage_has(two_stages: list[tuple[int, ...]]) -> None:
    given = data()
    seen = hold_the_batch(lambda worker, empty: computed(empty), None, given)
    assert len(seen) == 2
    assert all(bool((tensor == 7).all()) for one in seen for tensor in one.values())


def test_a_batch_is_broadcast_in_pieces(two_stages: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_BROADCAST_BYTES", 3 * 6 * 8)
    hold_the_batch(lambda worker, empty: computed(empty), None, data())
    assert two_stages == [(3, 6), (1, 6), (4, 2)]
