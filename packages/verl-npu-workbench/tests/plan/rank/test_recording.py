"""Recorded phases: gradients that FSDP keeps whole until the last micro batch, and costs from a ledger of blocks."""

from __future__ import annotations

import json

import pytest
from verl_npu_workbench.plan.job import Holder, Phase
from verl_npu_workbench.plan.rank.recording import Recording
from virtual_ascend.ledger import Block
from virtual_ascend.testing import run

pytest.importorskip("torch")
pytestmark = pytest.mark.virtual
PROGRAM = """
import contextlib, gc, json, os, tempfile
import torch, torch_npu, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.device_mesh import init_device_mesh
from verl_npu_workbench.plan.job import Phase
from verl_npu_workbench.plan.rank.recording import Recording
from virtual_ascend import ledger

SIZE, RANKS = 512, 4

ledger.start(1.0, 1.0)
ledger.be_alone()
store = dist.FileStore(tempfile.mkdtemp() + "/store", RANKS)
dist.init_process_group("cpu:gloo,npu:hccl", store=store, rank=0, world_size=RANKS)


def model():
    return nn.Sequential(*(nn.Linear(SIZE, SIZE, bias=False) for _ in range(4))).npu()


def fsdp1(**how):
    types = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    whole = FullyShardedDataParallel(model(), device_id=torch.npu.current_device(), mixed_precision=types, **how)
    return whole, whole.no_sync


def fsdp2(reduced_in):
    whole, mesh = model(), init_device_mesh("npu", (RANKS,))
    for layer in whole:
        fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, reduced_in))
    fully_shard(whole, mesh=mesh)

    @contextlib.contextmanager
    def unreduced():
        whole.set_requires_gradient_sync(False)
        yield
        whole.set_requires_gradient_sync(True)

    return whole, unreduced


def case(make):
    gc.collect()  # the model of the case before
    whole, unreduced = make()
    recording = Recording(ledger)
    recording.watch()
    with recording.phase(Phase.UPDATE_ACTOR):
        for last in (False, True):
            with contextlib.nullcontext() if last else unreduced():
                whole(torch.ones(1, SIZE, device="npu")).sum().backward()
    return max(point.holders.get("gradients", 0) for point in recording.timeline())


CASES = {
    "FSDP1": fsdp1,
    "FSDP1, original parameters": lambda: fsdp1(use_orig_params=True),
    "FSDP2, reduced as computed": lambda: fsdp2(torch.bfloat16),
    "FSDP2, reduced in float32": lambda: fsdp2(torch.float32),
}
print(json.dumps({name: case(make) for name, make in CASES.items()}))
os._exit(0)
"""
WEIGHTS = 4 * 512 * 512
"""The bytes of the weights of all ranks."""


@pytest.fixture(scope="module")
def kept() -> dict[str, int]:
    """Return the peak of gradients in each case, in bytes."""
    done = run(PROGRAM, VERL_NPU="off", VIRTUAL_ASCEND_PHANTOM="0.0625")
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("case", "size"),
    [
        ("FSDP1", 2),
        ("FSDP1, original parameters", 2),
        ("FSDP2, reduced as computed", 2),
        ("FSDP2, reduced in float32", 4),
    ],
)
def test_whole_gradients_are_gradients(kept: dict[str, int], case: str, size: int) -> None:
    # Sharded, they would be a fourth of it.
    assert kept[case] == WEIGHTS * size


pytest.importorskip("numpy")


class Ledger:
    """A device's ledger that is written by hand."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._clock = 0
        self.work: list[tuple[str, int, float, float, float]] = []
        self.messages: list[tuple[str, int, int, float]] = []

    def allocate(self, size: int, holder: Holder = Holder.ACTIVATIONS, site: int = 0) -> int:
        self._clock += 1
        self._blocks.append(Block(size, self._clock, 0, holder.number, site))
        return len(self._blocks) - 1

    def free(self, place: int) -> None:
        self._clock += 1
        self._blocks[place] = self._blocks[place]._replace(freed=self._clock)

    def blocks(self) -> list[Block]:
        return self._blocks

    def clock(self) -> int:
        return self._clock

    def take(self) -> tuple[list[tuple[str, int, float, float, float]], list[tuple[str, int, int, float]]]:
        taken = self.work, self.messages
        self.work, self.messages = [], []
        return taken


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def recording(ledger: Ledger) -> Recording:
    return Recording(ledger)  # type: ignore[arg-type]


def test_a_phase_has_its_peak_and_who_held_it(ledger: Ledger, recording: Recording) -> None:
    with recording.phase(Phase.LOAD):
        ledger.allocate(100, Holder.WEIGHTS)
    with recording.phase(Phase.LOG_PROB):
        first = ledger.allocate(30)
        second = ledger.allocate(5, Holder.MESSAGES)
        ledger.free(first)
        ledger.free(second)
    load, log_prob = recording.costs()
    assert (load.peak, load.after) == (100, 100)
    assert (log_prob.peak, log_prob.after) == (135, 100)
    assert log_prob.holders == {Holder.WEIGHTS.value: 100, Holder.MESSAGES.value: 5, Holder.ACTIVATIONS.value: 30}


def test_of_a_phase_that_is_done_twice_the_dearer_one_counts(ledger: Ledger, recording: Recording) -> None:
    with recording.phase(Phase.UPDATE_ACTOR):
        ledger.free(ledger.allocate(10))
        ledger.allocate(7, Holder.OPTIMIZER)
    with recording.phase(Phase.UPDATE_ACTOR):
        ledger.free(ledger.allocate(10))
    (update,) = recording.costs()
    assert (update.peak, update.holders[Holder.OPTIMIZER.value]) == (17, 7)


def test_the_hosts_memory_is_counted_apart(ledger: Ledger, recording: Recording) -> None:
    with recording.phase(Phase.UPDATE_ACTOR):
        ledger.allocate(7)
        ledger.allocate(40, Holder.HOST)
        ledger.free(ledger.allocate(60, Holder.HOST))
    with recording.phase(Phase.UPDATE_ACTOR):
        ledger.allocate(1)
    (update,) = recording.costs()
    assert (update.peak, update.holders) == (8, {Holder.ACTIVATIONS.value: 8})
    assert (update.host, update.host_after) == (100, 40)
    assert all(Holder.HOST.value not in point.holders for point in recording.timeline())


def test_work_and_messages_belong_to_their_phase(ledger: Ledger, recording: Recording) -> None:
    ledger.work = [("aten::mm", 1, 1.0, 1.0, 9.0)]
    with recording.phase(Phase.LOG_PROB):
        ledger.work = [("aten::mm", 3, 1.0, 1.0, 2.0), ("copy between host and NPU", 1, 0.0, 50.0, 0.0)]
        ledger.messages = [("all_reduce", 8, 2, 64.0)]
        ledger.allocate(1)
    (cost,) = recording.costs()
    assert (cost.calls, cost.seconds, cost.copied) == (3, 2.0, 50.0)
    assert cost.messages == [("all_reduce", 8, 2, 64.0)]


def test_a_site_has_its_blocks_with_their_holders_and_lifetimes(ledger: Ledger, recording: Recording) -> None:
    def twice() -> None:
        ledger.free(ledger.allocate(8, site=recording.site()))
        ledger.allocate(8, Holder.WEIGHTS, site=recording.site())
        ledger.allocate(8, Holder.HOST, site=recording.site())

    twice()
    ledger.allocate(4, site=recording.site())
    (inner, inside), (_, outside) = recording.sites().items()
    assert inner.startswith("plan/rank/test_recording.py:twice < plan/rank/test_recording.py:test_a_site_has")
    assert inside == [(8, Holder.ACTIVATIONS.value, 1), (8, Holder.WEIGHTS.value, 3)]
    assert outside == [(4, Holder.ACTIVATIONS.value, 1)]


def test_without_sites_no_block_has_one(ledger: Ledger, recording: Recording) -> None:
    ledger.allocate(8)
    assert recording.sites() == {}


def test_a_phase_that_fails_is_recorded_up_to_there(ledger: Ledger, recording: Recording) -> None:
    def failing() -> None:
        with recording.phase(Phase.LOAD):
            ledger.allocate(100)
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        failing()
    assert recording.costs()[0].peak == 100


def test_a_timeline_has_the_highest_moment_of_each_step(ledger: Ledger, recording: Recording) -> None:
    with recording.phase(Phase.LOAD):
        for _ in range(2000):
            ledger.free(ledger.allocate(1))
        ledger.free(ledger.allocate(1000))
    points = recording.timeline()
    assert len(points) <= 402
    assert max(sum(point.holders.values()) for point in points) == 1000
