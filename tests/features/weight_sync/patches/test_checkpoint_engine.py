"""verl's own checkpoint engine, over a communicator that may be disabled and cannot be destroyed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from verl_npu.errors import GroupError, TransferError
from verl_npu.features.weight_sync.patches.checking import Tally
from verl_npu.features.weight_sync.patches.checkpoint_engine import (
    broadcast_bucket_in_calling_thread,
    drop_communicator_without_destroy,
    explain_engine_worker_timeout,
    limit_wait_for_bucket,
    limit_wait_for_engine_worker,
    make_sent_weights_contiguous,
    verify_checkpoint_engine_connections,
)


def engine(**facts: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"group_name": "g", "rank": 1, "world_size": 2, "rebuild_group": True, **facts})


def test_a_disabled_communicator_is_an_error() -> None:
    with pytest.raises(GroupError, match=r"rank 1 of 2: .* PyHccl, is disabled"):
        verify_checkpoint_engine_connections(lambda engine: None, engine(pyhccl=SimpleNamespace(disabled=True)))


def test_a_rank_that_is_in_no_group_passes() -> None:
    assert verify_checkpoint_engine_connections(lambda engine: "made", engine(pyhccl=None)) == "made"


class Communicator:
    """A communicator that sums over the threads of a test."""

    disabled = False
    device = "cpu"

    def __init__(self, size: int) -> None:
        self._given: list[torch.Tensor] = []
        self._size = size
        self._meet = threading.Barrier(size, timeout=30)
        self._lock = threading.Lock()

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        with self._lock:
            self._given.append(tensor)
        self._meet.wait()
        total = torch.stack(self._given[-self._size :]).sum(0)
        self._meet.wait()
        return total


def together(join: Callable[[Any, Any, int], None], zmq: Any) -> list[Any]:
    """Connect a trainer and two rollouts with `join`; return their results, and then what each rollout hears next."""
    context, communicator = zmq.Context(), Communicator(3)
    publisher = context.socket(zmq.PUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    sockets = [publisher, *(context.socket(zmq.SUB) for _ in range(2))]

    def run(rank: int) -> Any:
        given = {"rank": rank, "world_size": 3, "topic": "bucket", "socket": sockets[rank], "pyhccl": communicator}
        try:
            return verify_checkpoint_engine_connections(
                lambda engine: rank and join(sockets[rank], port, rank), engine(**given)
            )
        except GroupError as error:
            return str(error)

    try:
        with ThreadPoolExecutor(3) as threads:
            ended = list(threads.map(run, range(3)))
        publisher.send_string("bucket", flags=zmq.SNDMORE)
        publisher.send_pyobj("the first bucket")
        heard = [(socket.recv_string(), socket.recv_pyobj())[1] for socket in sockets[1:] if None in ended]
        return [*ended, *heard]
    finally:
        context.destroy(linger=0)


def test_each_rollout_hears_the_trainer_before_anything_is_sent() -> None:
    zmq = pytest.importorskip("zmq", reason="verl's checkpoint engine needs zmq, which comes with vLLM")

    def join(socket: Any, port: int, rank: int) -> None:
        # The second one subscribes only after the trainer's first call.
        time.sleep(0.5 * (rank - 1))
        socket.connect(f"tcp://127.0.0.1:{port}")
        socket.setsockopt_string(zmq.SUBSCRIBE, "bucket")

    assert together(join, zmq)[3:] == ["the first bucket"] * 2


def test_a_rollout_that_hears_nothing_is_named_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    zmq = pytest.importorskip("zmq", reason="verl's checkpoint engine needs zmq, which comes with vLLM")
    monkeypatch.setenv("VERL_NPU_WEIGHT_SYNC_TIMEOUT", "0.5")

    def join(socket: Any, port: int, rank: int) -> None:
        if rank == 1:
            socket.connect(f"tcp://127.0.0.1:{port}")
            socket.setsockopt_string(zmq.SUBSCRIBE, "bucket")

    assert all("rank 2 received no message from rank 0" in error for error in together(join, zmq))


def test_a_trainer_that_announces_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    zmq = pytest.importorskip("zmq", reason="verl's checkpoint engine needs zmq, which comes with vLLM")
    monkeypatch.setenv("VERL_NPU_WEIGHT_SYNC_TIMEOUT", "3")

    def waiting(operation: Any) -> None:
        raise zmq.Again

    with pytest.raises(TransferError, match=r"rank 1: rank 0 \(the trainer\) announced no bucket within 3 s"):
        limit_wait_for_bucket(waiting, SimpleNamespace(rank=1))


@pytest.mark.parametrize("connected", [True, False], ids=["silent", "gone"])
def test_an_engine_that_takes_nothing_is_an_error(connected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    zmq = pytest.importorskip("zmq", reason="verl's checkpoint engine needs zmq, which comes with vLLM")
    monkeypatch.setenv("VERL_NPU_WEIGHT_SYNC_TIMEOUT", "0.2")
    # ZeroMQ frees an address some time after its socket was closed.
    sender = SimpleNamespace(zmq_handle=f"inproc://weights-{connected}", socket=None)

    def opened(sender: Any) -> None:
        sender.socket = zmq.Context.instance().socket(zmq.REQ)
        sender.socket.bind(sender.zmq_handle)

    async def hand_over(sender: Any, weights: Any) -> None:
        limit_wait_for_engine_worker(opened, sender)
        worker = zmq.Context.instance().socket(zmq.REP)
        if connected:
            worker.connect(sender.zmq_handle)
        try:
            sender.socket.send(b"a bucket")
            sender.socket.recv()
        finally:
            worker.close(linger=0)
            sender.socket.close()
            raise_in_cleanup()

    def raise_in_cleanup() -> None:
        if not connected:
            raise FileNotFoundError("shared memory that went with the worker")

    with pytest.raises(TransferError, match=rf"at inproc://weights-{connected} received no weights for 0\.2 s"):
        asyncio.run(explain_engine_worker_timeout(hand_over, sender, []))


def test_another_error_while_weights_are_handed_over_stays_what_it_is() -> None:
    pytest.importorskip("zmq", reason="verl's checkpoint engine needs zmq, which comes with vLLM")

    async def hand_over(sender: Any, weights: Any) -> None:
        raise ValueError("too large")

    with pytest.raises(ValueError, match="too large"):
        asyncio.run(explain_engine_worker_timeout(hand_over, None, []))


def test_the_sum_of_many_tensors_tells_their_names_and_their_order() -> None:
    a, b = torch.ones(3), torch.zeros(3)

    def of(*items: tuple[str, torch.Tensor]) -> str:
        tally = Tally()
        for name, tensor in items:
            tally.add(name, tensor)
        return tally.digest

    assert len({of(("a", a), ("b", b)), of(("b", b), ("a", a)), of(("a", b), ("b", a)), of(("a", a))}) == 4
    assert of(("a", a), ("b", b)) == of(("a", a.clone()), ("b", b.clone()))


async def later(weights: list[tuple[str, torch.Tensor]]) -> AsyncIterator[tuple[str, torch.Tensor]]:
    for item in weights:
        yield item


@pytest.mark.parametrize("given", [iter, later], ids=["generator", "asynchronous generator"])
def test_weights_in_any_layout_are_sent(given: Callable[[Any], Any]) -> None:
    weights = [("transposed", torch.arange(6).reshape(2, 3).T), ("plain", torch.ones(2))]
    sent: list[tuple[str, torch.Tensor]] = []

    async def send(engine: Any, weights: Any, global_steps: int) -> None:
        if hasattr(weights, "__aiter__"):
            sent.extend([item async for item in weights])
        else:
            sent.extend(weights)

    asyncio.run(make_sent_weights_contiguous(send, engine(rank=0), given(weights), global_steps=1))
    assert [name for name, _ in sent] == ["transposed", "plain"]
    assert all(tensor.is_contiguous() and torch.equal(tensor, dict(weights)[name]) for name, tensor in sent)
    assert sent[1][1] is weights[1][1]


def upstreams(engine: Any) -> None:
    engine.pyhccl.destroyComm(engine.pyhccl.comm)
    engine.pyhccl = None


def test_a_communicator_that_cannot_be_destroyed_is_dropped() -> None:
    ended = engine(pyhccl=SimpleNamespace(comm=1))
    drop_communicator_without_destroy(upstreams, ended)
    assert ended.pyhccl is None


def test_one_that_can_be_destroyed_is() -> None:
    destroyed: list[Any] = []
    drop_communicator_without_destroy(
        upstreams, engine(pyhccl=SimpleNamespace(comm="c", destroyComm=destroyed.append))
    )
    assert destroyed == ["c"]


class Operation:
    """The parts of verl v0.9.0's BroadcastOperation that the patch touches."""

    _task: Any

    def _run(self) -> None:
        self.thread = threading.current_thread()


def test_a_bucket_is_broadcast_before_the_constructor_returns_and_in_its_thread() -> None:
    operation: Any = Operation()

    async def move() -> None:
        broadcast_bucket_in_calling_thread(operation, 1, "communicator", "bucket", None, "socket", "topic")  # type: ignore[arg-type]
        assert operation.thread is threading.current_thread()
        await operation._task

    asyncio.run(move())
    assert (operation.rank, operation.pyhccl, operation.bucket, operation.topic) == (
        1,
        "communicator",
        "bucket",
        "topic",
    )


def test_the_error_of_a_broadcast_is_the_constructors() -> None:
    class Broken(Operation):
        def _run(self) -> None:
            raise TransferError(subject="s", expected="e", found="f", fix="x")

    with pytest.raises(TransferError):
        broadcast_bucket_in_calling_thread(Broken(), 1, None, None, None, None, "topic")  # type: ignore[arg-type]
