"""verl's own HCCL checkpoint engine, over vllm-ascend's PyHccl, both as they are, between ranks on virtual NPUs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .ranks import Ended, Nursery, Run

pytestmark = [pytest.mark.virtual, pytest.mark.upstream]

ENGINE = "verl.checkpoint_engine.hccl_checkpoint_engine"

# Rank 0 sends, rank 1 is a trainer that only gathers, the others are rollouts; all weights of a sync come from its
# number. `one_sync` gives what a rollout took.
START = """
import asyncio, pickle, socket, threading, zmq
from verl.checkpoint_engine.hccl_checkpoint_engine import HCCLCheckpointEngine

TRAINERS = 2

def made(bucket=4096, **options):
    return HCCLCheckpointEngine(bucket_size=bucket, is_master=RANK == 0, **options)

def weights(number):
    torch.manual_seed(number)
    yield "embed", torch.randn(33, 16, dtype=torch.bfloat16, device=DEVICE)
    yield "norm", torch.randn(16, device=DEVICE)
    for layer in range(12):
        yield f"layers.{layer}", torch.randn(24, 16, dtype=torch.bfloat16, device=DEVICE)
    yield "transposed", torch.randn(24, 16, device=DEVICE).T
    yield "every_other", torch.randn(24, 16, device=DEVICE)[::2]
    yield "scalar", torch.randn((), device=DEVICE)

def share(name, value):
    path = f"{FOLDER}/{name}"
    if RANK == 0:
        with open(path + ".new", "wb") as file:
            pickle.dump(value, file)
        os.replace(path + ".new", path)
    while not os.path.exists(path):
        time.sleep(0.02)
    return pickle.load(open(path, "rb"))

def join_group(engine, number, change=lambda metadata: metadata):
    metadata = change(share(f"metadata{number}", engine.prepare()))
    sides = engine.build_topology(TRAINERS, SIZE - TRAINERS, [metadata] * SIZE)
    side, place = (sides[0], RANK) if RANK < TRAINERS else (sides[1], RANK - TRAINERS)
    engine.init_process_group(**{name: values[place] for name, values in side.items()})

def move(engine, sent):
    async def run():
        if RANK < TRAINERS:
            await engine.send_weights(sent)
            return None
        return [(name, tensor.clone()) async for name, tensor in engine.receive_weights()]
    return asyncio.run(run())

def same(taken, number):
    expected = list(weights(number))
    return [name for name, _ in taken] == [name for name, _ in expected] and all(
        got.dtype == sent.dtype and got.shape == sent.shape and torch.equal(bits(got), bits(sent))
        for (_, got), (_, sent) in zip(taken, expected)
    )
"""


def ok(ended: list[Ended]) -> list[Ended]:
    assert [rank.status for rank in ended] == [0] * len(ended), "\n".join(rank.output for rank in ended)
    return ended


@pytest.fixture(scope="module", params=["v0.7.1", "v0.9.1"])
def pin(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def engines(pin: str, source: Callable[[str, str], Path], importable: Callable[[str], Path]) -> Iterator[Nursery]:
    pytest.importorskip("vllm", reason="PyHccl needs vLLM: run this test in the environment of the pin ccd7d934")
    paths = [str(importable(pin)), str(source("vllm-ascend", "v0.11.0")), os.environ.get("PYTHONPATH", "")]
    # Copies that are not waited for come late: what is read or used again too early is then wrong.
    made = Nursery(ENGINE, PYTHONPATH=os.pathsep.join(filter(None, paths)), VERL_NPU_VIRTUAL_COPIES="delayed")
    yield made
    made.close()


@pytest.fixture
def run(engines: Nursery, tmp_path: Path) -> Run:
    def run(program: str, size: int = 4, timeout: float = 60, **changes: str) -> list[Ended]:
        return engines.run(START + program, tmp_path, size, timeout, **changes)

    return run


@pytest.mark.parametrize("rebuild", [False, True], ids=["one group", "a group for each sync"])
def test_each_parameter_arrives_bit_for_bit_in_each_sync(run: Run, rebuild: bool) -> None:
    ended = ok(
        run(
            f"""
engine = made(rebuild_group={rebuild})
for number in range(3):
    join_group(engine, number)
    taken = move(engine, weights(number))
    engine.finalize()
    if taken: tell(**{{f"sync {{number}}": same(taken, number)}})
"""
        )
    )
    assert [rank.facts for rank in ended[2:]] == [{f"sync {number}": True for number in range(3)}] * 2
