"""Memory snapshots made by hand: their peaks, who held them in a plan, and files that are none."""

from __future__ import annotations

import dataclasses
import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from verl_npu_workbench.plan.job import Holder, Outcome, Point, site_of
from verl_npu_workbench.plan.planning import Planned
from verl_npu_workbench.plan.snapshot import Block, Peak, compare, read

from verl_npu.errors import PlanError

MIB = 1 << 20
STATE = [("/a/site-packages/torch/optim/adam.py", "_init_group"), ("/a/site-packages/torch/optim/adam.py", "step")]
BACKWARD = [("??", "torch::autograd::Engine")]
WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS = (
    holder.value for holder in (Holder.WEIGHTS, Holder.GRADIENTS, Holder.OPTIMIZER, Holder.ACTIVATIONS)
)
EARLY = "allocated before the recording"


def frames(called: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    return [{"filename": file, "name": name} for file, name in called]


def alloc(address: int, size: int, called: Sequence[tuple[str, str]] = STATE) -> dict[str, Any]:
    return {"action": "alloc", "addr": address, "size": size, "frames": frames(called)}


def free(address: int, size: int) -> dict[str, Any]:
    return {"action": "free_completed", "addr": address, "size": size, "frames": []}


def segment(*blocks: tuple[int, int], device: int = 0) -> dict[str, Any]:
    """Return a segment with blocks in use, each of which has an address and a size, and with a free block."""
    held = [
        {"address": at, "size": size + 512, "requested_size": size, "state": "active_allocated", "frames": []}
        for at, size in blocks
    ]
    held.append({"address": 1 << 40, "size": MIB, "requested_size": 0, "state": "inactive", "frames": []})
    return {"device": device, "total_size": sum(each["size"] for each in held), "blocks": held}


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a snapshot of segments and of each NPU's history."""

    def write(segments: list[dict[str, Any]], *traces: list[dict[str, Any]]) -> Path:
        path = tmp_path / "torch_memory_rank0_pid1.pickle"
        path.write_bytes(pickle.dumps({"segments": segments, "device_traces": list(traces)}))
        return path

    return write


@pytest.fixture
def update(planned: Callable[..., Planned]) -> Callable[..., Planned]:
    """Return a function that makes a plan with two times, whose rank allocated blocks at these sites."""

    def make(sites: dict[str, list[tuple[int, str, int]]]) -> Planned:
        made = planned({})
        points = [Point("load", {WEIGHTS: 900}), Point("update actor", {OPTIMIZER: 1000, ACTIVATIONS: 200})]
        return dataclasses.replace(made, outcomes=(Outcome(rank=0, timeline=points, sites=sites),))

    return make


def test_the_peak_of_a_history_has_the_blocks_that_were_there_then(written: Callable[..., Path]) -> None:
    failed = {"action": "oom", "size": 99, "device_free": 0, "frames": []}
    history = [free(1, 5), alloc(2, 10), alloc(3, 20), failed, free(2, 10), alloc(4, 5)]
    found = read(written([segment((3, 20), (4, 5), (9, 1))], history))
    assert sorted(block.size for block in found.blocks) == [1, 10, 20]
    assert found.events == 6


def test_the_peak_may_be_before_the_first_event(written: Callable[..., Path]) -> None:
    assert read(written([segment()], [free(1, 5), alloc(2, 4), free(2, 4)])).blocks == [Block(5)]


def test_blocks_have_the_frames_that_allocated_them(written: Callable[..., Path]) -> None:
    (block,) = read(written([segment((2, 10))], [alloc(2, 10)])).blocks
    assert block.frames == frames(STATE)


def test_without_a_history_the_blocks_are_those_that_were_left(written: Callable[..., Path]) -> None:
    assert read(written([segment((2, 10), (3, 4))])) == Peak([Block(10), Block(4)], events=0)


def test_the_npu_with_the_most_memory_is_read(written: Callable[..., Path]) -> None:
    found = read(written([segment((2, 10)), segment((3, 20), device=1)], [], [alloc(3, 20)]))
    assert (found.events, [block.size for block in found.blocks]) == (1, [20])


class _Runs:
    def __reduce__(self) -> object:
        return os.mkdir, ("made",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (pickle.dumps({"segments": [_Runs()]}), "posix.mkdir"),
        (b"no pickle", "UnpicklingError"),
        (pickle.dumps([1]), "TypeError"),
        (pickle.dumps({"segments": []}), "no segments"),
        (pickle.dumps({"segments": [segment()]}), "device_traces"),
    ],
)
def test_another_file_is_refused_and_nothing_in_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(PlanError, match="expected a memory snapshot of one NPU's process") as raised:
        read(tmp_path / "file")
    assert said in str(raised.value)
    assert not (tmp_path / "made").exists()


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="No such file"):
        read(tmp_path / "file")


def test_a_block_has_the_holder_of_its_site_beside_the_most_similar_time(update: Callable[..., Planned]) -> None:
    plan = update({site_of(STATE): [(512, OPTIMIZER, 3)]})
    found = compare(plan, Peak([Block(400, frames(STATE))], events=1))
    assert found.phase == "update actor"
    assert (found.planned, found.held) == ({OPTIMIZER: 1000, ACTIVATIONS: 200}, {OPTIMIZER: 400})


def test_a_block_without_python_is_known_by_its_size_too(update: Callable[..., Planned]) -> None:
    # Only a recording of Python's frames leaves such a block without any.
    plan = update({"": [(512, GRADIENTS, 2)]})
    assert compare(plan, Peak([Block(512, [])], events=1)).held == {GRADIENTS: 512}


def test_blocks_of_one_site_are_told_apart_by_their_size(update: Callable[..., Planned]) -> None:
    plan = update({"": [(1024, GRADIENTS, 2), (1024, ACTIVATIONS, 1), (2048, ACTIVATIONS, 1), (512, WEIGHTS, 3)]})
    blocks = [Block(size, frames(BACKWARD)) for size in (1000, 2000, 500, 5000)]
    held = compare(plan, Peak(blocks, events=1)).held
    # The plan has no block of 5000 bytes, and most bytes at this place are the activations'.
    assert held == {GRADIENTS: 1000, ACTIVATIONS: 7000, WEIGHTS: 500}


def test_what_the_plan_does_not_know_is_named_with_its_frames(update: Callable[..., Planned]) -> None:
    other = [("/b/mine/cache.py", "keep"), ("/b/mine/loop.py", "fit")]
    blocks = [Block(3, frames(STATE)), Block(10, frames(other)), Block(10, frames(other))]
    found = compare(update({"": [(512, ACTIVATIONS, 1)]}), Peak(blocks, events=1))
    assert next(iter(found.places.items())) == ("b/mine/cache.py:keep < b/mine/loop.py:fit", 20)
    assert found.held == {"not planned": 23}


def test_what_was_there_before_the_recording_has_its_own_row(update: Callable[..., Planned]) -> None:
    found = compare(update({"": [(512, ACTIVATIONS, 1)]}), Peak([Block(7)], events=1))
    assert found.held == {EARLY: 7}


def test_a_site_is_the_same_in_a_plan_and_in_a_run() -> None:
    run = [("/x/site-packages/torch/nn/modules/linear.py", "forward"), ("/x/torch_npu/npu/utils.py", "wrapped")]
    plan = [("/y/torch/nn/modules/linear.py", "forward"), ("/y/verl_npu_workbench/plan/rank/workers.py", "step")]
    # A plan has generated code, but no C++ code, and some recordings of a run have both.
    run.append(("??", "THPVariable_matmul"))
    plan.insert(0, ("<string>", "__init__"))
    assert site_of(run) == site_of(plan) == "nn/modules/linear.py:forward"
