"""verl's own HCCL checkpoint engine over vllm-ascend's PyHccl, both unchanged, between ranks on virtual NPUs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from testing.ranks import Ended, Ranks, Run

pytestmark = [pytest.mark.virtual, pytest.mark.upstream]

ENGINE = "verl.checkpoint_engine.hccl_checkpoint_engine"

# Process 0 sends, 1 is a trainer that only gathers, 2 and 3 are rollouts: the group's ranks 1 and 2. The weights of a
# sync are computed from its number.
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
        taken = []
        async for name, tensor in engine.receive_weights():
            # As vLLM's adapter takes them: copied to the host, and waited for later.
            host = torch.empty(tensor.shape, dtype=tensor.dtype)
            taken.append((name, host.copy_(tensor, non_blocking=True)))
        torch.npu.synchronize()
        return taken
    return asyncio.run(run())

def leave():
    # Together: what a process has published and not yet sent goes with it.
    open(f"{FOLDER}/left{RANK}", "w").close()
    while not all(os.path.exists(f"{FOLDER}/left{rank}") for rank in range(SIZE)):
        time.sleep(0.02)

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


@pytest.fixture(scope="module", params=["v0.7.1", "v0.9.0", "v0.9.1"])
def pin(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def engines(pin: str, source: Callable[[str, str], Path], importable: Callable[[str], Path]) -> Iterator[Ranks]:
    pytest.importorskip("vllm", reason="PyHccl needs vLLM: run this test in the environment of the pin ccd7d934")
    paths = [str(importable(pin)), str(source("vllm-ascend", "v0.11.0")), os.environ.get("PYTHONPATH", "")]
    # Copies that nobody waits for come late: data that is read or used again too early is then wrong.
    made = Ranks(ENGINE, PYTHONPATH=os.pathsep.join(filter(None, paths)), VIRTUAL_ASCEND_COPIES="delayed")
    yield made
    made.close()


@pytest.fixture
def run(engines: Ranks, tmp_path: Path) -> Run:
    def run(program: str, size: int = 4, timeout: float = 150, **changes: str) -> list[Ended]:
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
leave()
"""
        )
    )
    assert [rank.facts for rank in ended[2:]] == [{f"sync {number}": True for number in range(3)}] * 2


# Rank 3 reaches the trainer's publisher through a relay that is slow to open, like a busy network.
LATE = """
import dataclasses

def slow(metadata):
    if RANK != 3: return metadata
    gate = socket.create_server(("127.0.0.1", 0))
    def carry(source, target):
        while data := source.recv(65536): target.sendall(data)
    def relay():
        client, _ = gate.accept()
        time.sleep(1.5)
        server = socket.create_connection((metadata.zmq_ip, metadata.zmq_port))
        for ends in ((client, server), (server, client)):
            threading.Thread(target=carry, args=ends, daemon=True).start()
    threading.Thread(target=relay, daemon=True).start()
    return dataclasses.replace(metadata, zmq_ip="127.0.0.1", zmq_port=gate.getsockname()[1])

"""


def test_a_rollout_whose_subscription_comes_late_misses_nothing(run: Run) -> None:
    program = """
engine = made()
for number in range(2):
    join_group(engine, number, slow)
    taken = move(engine, weights(number))
    engine.finalize()
    if taken: tell(**{f"sync {number}": same(taken, number)})
leave()
"""
    ended = ok(run(LATE + program))
    assert [rank.facts for rank in ended[2:]] == [{"sync 0": True, "sync 1": True}] * 2


def test_upstream_alone_loses_what_such_a_rollout_was_sent(run: Run) -> None:
    program = """
HCCLCheckpointEngine.init_process_group = HCCLCheckpointEngine.init_process_group.__wrapped__
engine = made()
def late(metadata):
    join = engine._connect_zmq_client
    def connect(metadata):
        join(metadata)
        engine.socket.setsockopt(zmq.RCVTIMEO, 4000)
    engine._connect_zmq_client = connect
    return slow(metadata)
join_group(engine, 0, late)
try:
    taken = move(engine, weights(0))
    right = taken is None or same(taken, 0)
except Exception as error:
    right = False
tell(right=right)
leave()
"""
    ended = ok(run(LATE + program))
    # On a busy machine the other rank comes late as well.
    assert ended[3].facts["right"] is False


def test_a_rollout_that_never_hears_the_trainer_is_named_on_all_ranks(run: Run) -> None:
    program = """
import dataclasses
from verl_npu.errors import GroupError
deaf = socket.create_server(("127.0.0.1", 0))
def away(metadata):
    return dataclasses.replace(metadata, zmq_port=deaf.getsockname()[1]) if RANK == 3 else metadata
try:
    join_group(made(), 0, away)
except GroupError as error:
    tell(error=str(error))
"""
    ended = ok(run(program, VERL_NPU_WEIGHT_SYNC_TIMEOUT="1"))
    assert ended[1].facts == {}, [rank.facts for rank in ended]
    assert all("rank 2 heard nothing" in ended[rank].facts["error"] for rank in (0, 2, 3)), [
        rank.facts for rank in ended
    ]


ENDS = """
engine = made()
join_group(engine, 0)
def broken(sent):
    for number, item in enumerate(sent):
        if number == 6: {fault}
        yield item
try:
    sent = weights(0)
    move(engine, broken(sent) if RANK == {rank} else sent)
except Exception as error:
    tell(error=type(error).__name__ + ": " + str(error))
"""


def test_a_trainer_that_ends_during_a_sync_is_an_error_on_each_rollout(run: Run) -> None:
    ended = run(ENDS.format(fault="os._exit(7)", rank=0), VERL_NPU_WEIGHT_SYNC_TIMEOUT="3")
    assert [rank.status for rank in ended] == [7, 0, 0, 0], "\n".join(rank.output for rank in ended)
    assert all("announced no bucket within 3 s" in rank.facts["error"] for rank in ended[2:])


def test_a_trainer_that_stands_still_is_an_error_on_each_rollout(run: Run) -> None:
    ended = ok(run(ENDS.format(fault="time.sleep(8)", rank=0), VERL_NPU_WEIGHT_SYNC_TIMEOUT="2"))
    assert all("announced no bucket within 2 s" in rank.facts["error"] for rank in ended[2:])


def test_a_rollout_that_ended_during_a_sync_is_an_error_on_the_others(run: Run) -> None:
    program = """
engine = made()
join_group(engine, 0)
async def take():
    async for name, tensor in engine.receive_weights():
        if name == "layers.4": os._exit(7)
try:
    if RANK == 3: asyncio.run(take())
    move(engine, weights(0))
    engine.finalize()
    join_group(engine, 1)
except Exception as error:
    tell(error=type(error).__name__ + ": " + str(error))
"""
    ended = run(program, VERL_NPU_WEIGHT_SYNC_TIMEOUT="3")
    assert [rank.status for rank in ended] == [0, 0, 0, 7], "\n".join(rank.output for rank in ended)
    assert all("error" in ended[rank].facts for rank in (0, 2)), [rank.facts for rank in ended]


def test_a_communicator_without_hccl_is_an_error(run: Run) -> None:
    program = """
from verl_npu.errors import GroupError
engine = made()
try:
    join_group(engine, 0)
except GroupError as error:
    tell(error=str(error))
"""
    ended = ok(run(program, HCCL_SO_PATH="/nowhere/libhccl.so"))
    assert all("a disabled PyHccl" in ended[rank].facts["error"] for rank in (0, 2, 3))


def test_a_weight_larger_than_a_bucket_arrives_in_parts_or_is_refused(run: Run, pin: str) -> None:
    program = """
engine = made(bucket=1000)
join_group(engine, 0)
try:
    taken = move(engine, weights(0))
    tell(right=taken is None or same(taken, 0))
except Exception as error:
    tell(error=str(error))
leave()
"""
    ended = ok(run(program, VERL_NPU_WEIGHT_SYNC_TIMEOUT="2"))
    if pin == "v0.7.1":
        assert "Weight embed" in ended[0].facts["error"]
        assert "too large to fit in the bucket" in ended[0].facts["error"]
        assert all("announced no bucket" in rank.facts["error"] for rank in ended[2:])
    else:
        assert [rank.facts for rank in ended] == [{"right": True}] * 4


CHECKED = """
import vllm_ascend.distributed.device_communicators.pyhccl as pyhccl
broadcast = pyhccl.PyHcclCommunicator.broadcast
def garbled(communicator, tensor, src):
    broadcast(communicator, tensor, src)
    if RANK == int(os.environ["GARBLED"]): tensor[100] ^= 1
pyhccl.PyHcclCommunicator.broadcast = garbled
engine = made()
try:
    for number in range(2):
        join_group(engine, number)
        move(engine, weights(number))
        engine.finalize()
except Exception as error:
    tell(error=type(error).__name__ + ": " + str(error))
leave()
"""


def test_where_asked_each_sync_is_compared_with_what_was_sent(run: Run) -> None:
    ended = ok(run(CHECKED, VERL_NPU_WEIGHT_SYNC_CHECK="checksums", GARBLED="-1"))
    assert [rank.facts for rank in ended] == [{}] * 4
    told = [re.findall(r"weight sync (\d) .*17 tensors, sha256 (\w+)", ended[rank].output) for rank in (0, 2, 3)]
    assert [number for number, _ in told[0]] == ["1", "2"]
    assert told[0] == told[1] == told[2]


def test_a_bit_that_changed_on_the_way_is_then_an_error(run: Run) -> None:
    changes = {
        "VERL_NPU_WEIGHT_SYNC_CHECK": "checksums",
        "VERL_NPU_WEIGHT_SYNC_TIMEOUT": "2",
        "HCCL_EXEC_TIMEOUT": "5",
    }
    ended = ok(run(CHECKED.replace("range(2)", "range(1)"), GARBLED="3", **changes))
    assert "found 17 weights with the sha256" in ended[3].facts["error"]
    assert [ended[rank].facts for rank in range(3)] == [{}] * 3


HANDED_ON = """
sys.modules["vllm.model_executor.models.qwen3_next"] = None  # its placeholder for triton on a CPU has no exp
from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer as transfer

free = socket.create_server(("127.0.0.1", 0))
handle = share("handle", f"tcp://127.0.0.1:{free.getsockname()[1]}")
free.close()
sent = {f"layers.{number}": torch.full((1 << 18,), float(number), device=DEVICE) for number in range(3)}
held = {}
def take(weights, *last):
    if os.environ.get("FAILS"): raise ValueError("a shape that does not fit")
    held.update((name, tensor.clone()) for name, tensor in weights)
try:
    if RANK == 0:
        sender = transfer.BucketedWeightSender(handle, bucket_size_mb=1, use_shm=True)
        asyncio.run(sender.async_send_weights(iter(sent.items())))
    else:
        transfer.BucketedWeightReceiver(handle, DEVICE, use_shm=True).receive_weights(take)
        tell(right=all(torch.equal(bits(held[name]), bits(tensor)) for name, tensor in sent.items()))
except Exception as error:
    tell(error=type(error).__name__ + ": " + str(error))
"""


def test_the_engines_worker_gets_each_bucket(run: Run) -> None:
    assert [rank.facts for rank in ok(run(HANDED_ON, size=2))] == [{}, {"right": True}]


def test_an_engines_worker_that_fails_is_an_error_where_the_weights_come_from(run: Run) -> None:
    ended = ok(run(HANDED_ON, size=2, FAILS="yes", VERL_NPU_WEIGHT_SYNC_TIMEOUT="2"))
    assert "TransferError: checkpoint engine: expected the rollout engine's worker" in ended[0].facts["error"]
    assert ended[1].facts["error"] == "ValueError: a shape that does not fit"
