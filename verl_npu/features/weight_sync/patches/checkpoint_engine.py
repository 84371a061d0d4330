"""Patches of verl's own HCCL checkpoint engine, which syncs weights from v0.7.1 on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from ....errors import GroupError, TransferError
from ....registry.source.probe import AllOf, AnyOf, Defines, Mentions, Not
from ..feature import weight_sync
from ..settings import WAIT_LONGER, Settings
from ..transport.drawing import Weight, each
from .protocols import Broadcast, CheckpointEngine, Communicator, Sender, Socket
from .readback import Tally, publish, requested
from .subscription import describe, wait_for_subscriptions

if TYPE_CHECKING:
    import torch

_MODULE = "verl.checkpoint_engine.hccl_checkpoint_engine"
_ENGINE = f"{_MODULE}:HCCLCheckpointEngine"
_RUN = f"{_MODULE}:BroadcastOperation._run"
_START = f"{_MODULE}:BroadcastOperation.__init__"
_SENDER = "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:BucketedWeightSender"
_WAITS_NO_LONGER = AnyOf(
    Mentions(f"{_SENDER}._init_socket", "RCVTIMEO"), Mentions(f"{_SENDER}.async_send_weights", "poll")
)


@weight_sync.wrap(
    f"{_ENGINE}.init_process_group",
    why="If PyHccl finds no libhccl, it broadcasts nothing, without an error. Names that the trainer publishes before "
    "a rollout has subscribed are lost: that rollout loads wrong weights or waits for ever.",
    how="A disabled communicator is an error, and the trainer publishes calls until every rollout has heard one.",
    link="https://github.com/vllm-project/vllm-ascend/issues/942",
    retired_by=AllOf(
        Mentions(f"{_ENGINE}.init_process_group", "disabled"),
        AnyOf(Mentions(f"{_ENGINE}._start_zmq_server", "XPUB"), Not(Mentions(f"{_ENGINE}._start_zmq_server", "PUB"))),
    ),
    requires=Defines(f"{_ENGINE}.init_process_group"),
)
def verify_checkpoint_engine_connections(
    original: Callable[..., object], engine: CheckpointEngine, *args: object, **kwargs: object
) -> object:
    """Make the group. Raises GroupError if its communicator would move nothing, or a rollout hears nothing."""
    made = original(engine, *args, **kwargs)
    if engine.pyhccl is not None:
        if getattr(engine.pyhccl, "disabled", False):
            raise GroupError(
                subject=describe(engine),
                expected="a communicator of vllm-ascend's over HCCL",
                found="that PyHccl is disabled and would broadcast nothing",
                fix="set HCCL_SO_PATH to a libhccl.so that loads; with one rank only there is nothing to broadcast",
            )
        wait_for_subscriptions(engine, engine.pyhccl, Settings.from_environment().timeout)
    return made


@weight_sync.wrap(
    _RUN,
    why="If the trainer dies during a sync, each rollout waits for the next bucket for ever and prints nothing.",
    how="A rollout waits VERL_NPU_WEIGHT_SYNC_TIMEOUT seconds and then raises an error that names the trainer.",
    link="none: nobody seems to have reported it",
    retired_by=AnyOf(Mentions(_RUN, "poll"), Mentions(f"{_ENGINE}._connect_zmq_client", "RCVTIMEO")),
    requires=Defines(_RUN),
)
def limit_wait_for_bucket(original: Callable[[Broadcast], object], operation: Broadcast) -> object:
    """Move one bucket. Raises TransferError if the trainer announces none in time."""
    import zmq

    try:
        return original(operation)
    except zmq.Again as error:
        raise TransferError(
            subject=f"checkpoint engine, rank {operation.rank}",
            expected="the next bucket",
            found=f"that rank 0, the trainer, announced no bucket for {Settings.from_environment().timeout:g} s",
            fix="look for the error of the trainer",
            override=WAIT_LONGER,
        ) from error


@weight_sync.replace(
    _START,
    why="v0.9.0 broadcasts each bucket in another thread than the one that has set its NPU, and the sync ends with an "
    "HCCL error. Upstream took it back for the next release.",
    how="A bucket is broadcast in the thread that asks for it, as in every other release.",
    link="https://github.com/verl-project/verl/pull/7487",
    retired_by=AllOf(Defines(_START), Not(Mentions(_START, "run_in_executor"))),
    requires=Mentions(_START, "run_in_executor"),
)
def broadcast_bucket_in_calling_thread(
    operation: Broadcast,
    rank: int,
    process_group: Communicator,
    bucket: torch.Tensor,
    metadata: object,
    socket: Socket,
    topic: str,
) -> None:
    """Move one bucket before returning. Raises TransferError if the trainer announces none in time."""
    operation.rank = rank
    operation.pyhccl = process_group
    operation.bucket = bucket
    operation.metadata = metadata
    operation.socket = socket
    operation.topic = topic
    operation._run()
    # Upstream waits for this afterwards.
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    operation._task = done


@weight_sync.wrap(
    f"{_ENGINE}.send_weights",
    why="A weight that is not contiguous ends the sync on the trainer with `RuntimeError: view size is not compatible "
    "with input tensor's size and stride`, and the rollouts wait for ever.",
    how="Such a weight is made contiguous before it is sent.",
    link="none: nobody seems to have reported it",
    retired_by=Mentions(f"{_ENGINE}.send_weights", "contiguous"),
    requires=Defines(f"{_ENGINE}.send_weights"),
)
async def make_sent_weights_contiguous(
    original: Callable[..., Awaitable[object]],
    engine: CheckpointEngine,
    weights: Iterable[Weight] | AsyncIterable[Weight],
    *args: object,
    **kwargs: object,
) -> object:
    """Send weights, contiguous or not. If the user requested a check, publish afterwards what was sent."""
    dense = each(weights, lambda name, weight: weight.contiguous())
    if engine.rank != 0 or not requested():
        return await original(engine, dense, *args, **kwargs)
    tally = Tally()
    sent = await original(engine, tally.watched(dense), *args, **kwargs)
    publish(engine, tally)
    return sent


@weight_sync.wrap(
    f"{_ENGINE}.finalize",
    why="With rebuild_group=True the job ends after the first sync: upstream calls destroyComm, and vllm-ascend's "
    "PyHccl has none (`AttributeError: 'PyHcclCommunicator' object has no attribute 'destroyComm'`).",
    how="A communicator without destroyComm is dropped, as vllm-ascend's own weight transfer does it.",
    link="none: nobody seems to have reported it; rebuild_group is off by default",
    retired_by=AllOf(Defines(f"{_ENGINE}.finalize"), Not(Mentions(f"{_ENGINE}.finalize", "destroyComm"))),
    requires=Defines(f"{_ENGINE}.finalize"),
)
def drop_communicator_without_destroy(
    original: Callable[[CheckpointEngine], object], engine: CheckpointEngine
) -> object:
    """End a sync, and with rebuild_group the group."""
    if engine.rebuild_group and engine.pyhccl is not None and not hasattr(engine.pyhccl, "destroyComm"):
        engine.pyhccl = _Dropped()  # type: ignore[assignment]  # upstream only calls its destroyComm, then drops it
    return original(engine)


@weight_sync.wrap(
    f"{_SENDER}._init_socket",
    why="If the worker of the rollout engine fails while it loads a bucket, the process that hands it the next bucket "
    "waits for ever and prints nothing.",
    how="The socket to the worker waits VERL_NPU_WEIGHT_SYNC_TIMEOUT seconds at most.",
    link="none: nobody seems to have reported it",
    retired_by=_WAITS_NO_LONGER,
    requires=Defines(f"{_SENDER}._init_socket"),
)
def limit_wait_for_engine_worker(original: Callable[[Sender], object], sender: Sender) -> object:
    """Open the socket to the rollout engine's worker, with a limit on each wait."""
    import zmq

    made = original(sender)
    milliseconds = int(Settings.from_environment().timeout * 1000)
    sender.socket.setsockopt(zmq.RCVTIMEO, milliseconds)
    # Sending waits as well, if nobody is connected any more.
    sender.socket.setsockopt(zmq.SNDTIMEO, milliseconds)
    # Nobody may be there to take what is still unsent: closing must not wait for them.
    sender.socket.setsockopt(zmq.LINGER, 0)
    return made


@weight_sync.wrap(
    f"{_SENDER}.async_send_weights",
    why="When the wait for the rollout engine's worker has lasted too long, ZeroMQ's error does not name the worker: "
    "`zmq.error.Again: Resource temporarily unavailable`.",
    how="It is replaced by an error that names the worker's address and says where to look.",
    link="none: nobody seems to have reported it",
    retired_by=_WAITS_NO_LONGER,
    requires=Defines(f"{_SENDER}.async_send_weights"),
)
async def explain_engine_worker_timeout(
    original: Callable[..., Awaitable[object]], sender: Sender, weights: Iterable[Weight] | AsyncIterable[Weight]
) -> object:
    """Hand weights to the rollout engine's worker. Raises TransferError if it takes none in time."""
    import zmq

    try:
        return await original(sender, weights)
    except Exception as error:
        # Upstream's clean-up fails as well if the worker has ended, and took their shared memory with it.
        if not isinstance(error, zmq.Again) and not isinstance(error.__context__, zmq.Again):
            raise
        timeout = Settings.from_environment().timeout
        raise TransferError(
            subject="checkpoint engine",
            expected="the rollout engine's worker to take the weights",
            found=f"that the rollout engine's worker behind {sender.zmq_handle} took no weights for {timeout:g} s",
            fix="see the log of that worker: it has ended, or failed to load them",
            override=WAIT_LONGER,
        ) from error


class _Dropped:
    """Stands in for a communicator that can only be forgotten, because it has no destroyComm."""

    comm = None

    def destroyComm(self, comm: None) -> None:
        """Nothing is left to destroy."""
