"""Patches of verl's own HCCL checkpoint engine, which syncs weights in v0.7.1 and later.

With VERL_NPU_WEIGHT_SYNC_CHECK, the patches also check that the sent weights arrived and that the engine holds them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ....errors import GroupError, TransferError
from ....registry.source.named import Key
from ....registry.source.probe import AllOf, AnyOf, Calls, Defines, Never, Not, Raises
from .. import weight_sync

if TYPE_CHECKING:
    import torch

    from ..engines.vllm import VLLMEngine, Worker
    from ..transport.tensors import Weight
    from .checking import CheckpointEngine, Communicator, Socket, Tally

_MODULE = "verl.checkpoint_engine.hccl_checkpoint_engine"
_ENGINE = f"{_MODULE}:HCCLCheckpointEngine"
_RUN = f"{_MODULE}:BroadcastOperation._run"
_START = f"{_MODULE}:BroadcastOperation.__init__"
_SENDER = "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:BucketedWeightSender"
_HAS_TIMEOUT = AnyOf(
    Calls(f"{_SENDER}._init_socket", "setsockopt", given=Key("RCVTIMEO")),
    Calls(f"{_SENDER}.async_send_weights", "poll"),
)
_RECEIVE = f"{_ENGINE}.receive_weights"
_WORKER = "verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension"
_PROOF = "_verl_npu_proof"
_LINK = "none: nobody seems to have asked for it"
_NEVER_RETIRED = Never("this is verl-npu's own check, for users who doubt the engine's weights")
_HELD_WHY = "If generated text looks wrong, nothing shows whether the engine holds the weights that it received."


# Upstream's objects, which have no types.
Broadcast: TypeAlias = Any
"""verl's BroadcastOperation, which moves one bucket of a checkpoint engine."""
Sender: TypeAlias = Any
"""verl's BucketedWeightSender, which sends weights to the worker of a rollout engine."""


@weight_sync.wrap(
    _RECEIVE,
    uses=(f"{_ENGINE}.rank", f"{_ENGINE}.socket"),
    why="If generated text looks wrong, nothing shows whether a rollout received the weights that the trainer sent.",
    how="With VERL_NPU_WEIGHT_SYNC_CHECK, we compare the SHA-256 over all names and bytes with the trainer's.",
    link=_LINK,
    retired_by=_NEVER_RETIRED,
    requires=Defines(_RECEIVE),
)
async def compare_received_weights_with_sent(
    original: Callable[..., AsyncIterable[Weight]], engine: CheckpointEngine, *args: object, **kwargs: object
) -> AsyncIterator[Weight]:
    """Receive the weights of one sync. Raises TransferError if the user requested a comparison, and the received
    weights differ from the sent weights."""
    # Imported here, because most processes of a job neither move nor prove weights.
    from .checking import Tally, requested

    weights = original(engine, *args, **kwargs)
    if not requested():
        async for item in weights:
            yield item
        return
    tally = Tally()
    async for name, tensor in weights:
        yield name, tally.add(name, tensor)
    engine.socket.recv_string()
    sent = str(engine.socket.recv_pyobj())
    if sent != tally.digest:
        raise TransferError(
            subject=f"checkpoint engine, rank {engine.rank}",
            expected=f"weights with the sha256 {sent[:16]}, as sent by rank 0, the trainer",
            found=f"{tally.tensors} weights with the sha256 {tally.digest[:16]}",
            fix="check HCCL's own log, and check the links between these NPUs, because bytes changed in transit",
        )
    tally.report(engine, f"rank {engine.rank}")


@weight_sync.wrap(
    f"{_WORKER}._update_weights",
    why=_HELD_WHY,
    how="With VERL_NPU_WEIGHT_SYNC_CHECK=engine, we record a digest of each weight before it is loaded, for the "
    "proof.",
    link=_LINK,
    retired_by=_NEVER_RETIRED,
    requires=Defines(f"{_WORKER}._update_weights"),
)
def note_given_weights_for_proof(
    original: Callable[..., object], worker: Worker, weights: Sequence[Weight], *args: object, **kwargs: object
) -> object:
    """Load one bucket of weights. If the user requested a proof of the engine's weights, also record the bucket for
    that proof."""
    noted: tuple[VLLMEngine, Tally] | None = getattr(worker, _PROOF, None)
    if noted is not None:
        proven, tally = noted
        for name, tensor in weights:
            tally.add(name, tensor)
        proven.expect(weights)
    return original(worker, weights, *args, **kwargs)


@weight_sync.wrap(
    f"{_WORKER}.update_weights_from_ipc",
    why="From 0.13 on, vllm-ascend transposes experts whenever it processes their weights, which upstream requests "
    "after each sync. It transposes them back only when the engine wakes up. In an engine that did not sleep, the "
    f"second sync fails, or silently garbles square experts. {_HELD_WHY}",
    how="Before loading, we lay transposed experts out as the loader expects them. With "
    "VERL_NPU_WEIGHT_SYNC_CHECK=engine, we then compare the engine's weights with the received ones, bit for bit.",
    link="none: nobody seems to have reported it for an engine that does not sleep",
    retired_by=Never("vllm-ascend causes the problem, and verl's source does not show the installed version"),
    requires=Defines(f"{_WORKER}.update_weights_from_ipc"),
)
def process_weights_once_and_prove_them(
    original: Callable[..., object], worker: Worker, *args: object, **kwargs: object
) -> object:
    """Load the weights of one sync. Raises WeightSyncError if the user requested a proof, and the engine does not hold
    these weights."""
    from ..engines.processing import lay_out_experts_for_loading
    from ..engines.vllm import VLLMEngine
    from .checking import Tally, brings_adapter, proof_requested

    if brings_adapter(kwargs):
        return original(worker, *args, **kwargs)
    lay_out_experts_for_loading(worker.model_runner.model)
    if not proof_requested():
        return original(worker, *args, **kwargs)
    proven, tally = VLLMEngine(worker.model_runner), Tally()
    setattr(worker, _PROOF, (proven, tally))
    try:
        done = original(worker, *args, **kwargs)
    finally:
        setattr(worker, _PROOF, None)
    tally.report(worker, "the engine's worker", f", {proven.prove()}")
    return done


@weight_sync.wrap(
    f"{_ENGINE}.init_process_group",
    uses=[f"{_ENGINE}.{name}" for name in ("pyhccl", "rank", "world_size", "group_name", "socket", "topic")],
    why="If PyHccl finds no libhccl, it silently broadcasts nothing. Names that the trainer publishes before a "
    "rollout has subscribed are lost, and that rollout loads wrong weights or waits forever.",
    how="A disabled communicator is an error. The trainer publishes test messages until every rollout has received "
    "one.",
    link="https://github.com/vllm-project/vllm-ascend/issues/942",
    retired_by=AllOf(
        Raises(f"{_ENGINE}.init_process_group", "", when="disabled"),
        Calls(f"{_ENGINE}._start_zmq_server", "socket", given=Key("XPUB")),
    ),
    requires=Defines(f"{_ENGINE}.init_process_group"),
)
def verify_checkpoint_engine_connections(
    original: Callable[..., object], engine: CheckpointEngine, *args: object, **kwargs: object
) -> object:
    """Create the process group. Raises GroupError if the group's communicator is disabled, or if a rollout receives no
    message."""
    from ..settings import Settings
    from .checking import describe, wait_for_subscriptions

    made = original(engine, *args, **kwargs)
    if engine.pyhccl is not None:
        if getattr(engine.pyhccl, "disabled", False):
            raise GroupError(
                subject=describe(engine),
                found="vllm-ascend's communicator, PyHccl, is disabled, so a weight sync would send nothing",
                fix="set HCCL_SO_PATH to a loadable libhccl.so, and check that the group has at least two ranks",
            )
        wait_for_subscriptions(engine, engine.pyhccl, Settings.from_environment().timeout)
    return made


@weight_sync.wrap(
    _RUN,
    uses=(f"{_MODULE}:BroadcastOperation.rank",),
    why="If the trainer dies during a sync, each rollout waits forever for the next bucket and prints nothing.",
    how="A rollout waits for VERL_NPU_WEIGHT_SYNC_TIMEOUT seconds, then raises an error that names the trainer.",
    link="none: nobody seems to have reported it",
    retired_by=AnyOf(
        Calls(_RUN, "poll"), Calls(f"{_ENGINE}._connect_zmq_client", "setsockopt", given=Key("RCVTIMEO"))
    ),
    requires=Defines(_RUN),
)
def limit_wait_for_bucket(original: Callable[[Broadcast], object], operation: Broadcast) -> object:
    """Transfer one bucket, and limit the wait for the trainer's message about the bucket. Raises TransferError if the
    message does not arrive in time."""
    import zmq

    from ..settings import WAIT_LONGER, Settings

    try:
        return original(operation)
    except zmq.Again as error:
        raise TransferError(
            subject=f"checkpoint engine, rank {operation.rank}",
            found=f"rank 0 (the trainer) announced no bucket within {Settings.from_environment().timeout:g} s",
            fix="look for the trainer's error",
            override=WAIT_LONGER,
        ) from error


@weight_sync.replace(
    _START,
    uses=[
        f"{_MODULE}:BroadcastOperation.{name}"
        for name in ("rank", "pyhccl", "bucket", "metadata", "socket", "topic", "_task", "_run()")
    ],
    why="v0.9.0 broadcasts each bucket in another thread than the one that set its NPU, and the sync fails with an "
    "HCCL error. Upstream reverted this in the next release.",
    how="The calling thread broadcasts the bucket, as in every other release.",
    link="https://github.com/verl-project/verl/pull/7487",
    retired_by=Calls(_START, "_run"),
    requires=Calls(_START, "run_in_executor"),
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
    """Transfer one bucket, and return after the transfer is complete. Raises TransferError if the trainer does not
    announce the bucket in time."""
    operation.rank = rank
    operation.pyhccl = process_group
    operation.bucket = bucket
    operation.metadata = metadata
    operation.socket = socket
    operation.topic = topic
    operation._run()
    # Upstream awaits this task afterwards.
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    operation._task = done


@weight_sync.wrap(
    f"{_ENGINE}.send_weights",
    uses=[f"{_ENGINE}.{name}" for name in ("rank", "socket", "topic")],
    why="If a weight is not contiguous, the sync fails on the trainer with `RuntimeError: view size is not compatible "
    "with input tensor's size and stride`, and the rollouts wait forever.",
    how="We make such a weight contiguous before it is sent.",
    link="none: nobody seems to have reported it",
    retired_by=Calls(f"{_ENGINE}.send_weights", "contiguous"),
    requires=Defines(f"{_ENGINE}.send_weights"),
)
async def make_sent_weights_contiguous(
    original: Callable[..., Awaitable[object]],
    engine: CheckpointEngine,
    weights: Iterable[Weight] | AsyncIterable[Weight],
    *args: object,
    **kwargs: object,
) -> object:
    """Make the weights contiguous where necessary, and send them. If the user requested a check, publish a digest of
    the weights afterwards."""
    from ..transport.tensors import each
    from .checking import Tally, requested

    dense = each(weights, lambda name, weight: weight.contiguous())
    if engine.rank != 0 or not requested():
        return await original(engine, dense, *args, **kwargs)
    import zmq

    tally = Tally()
    sent = await original(engine, tally.watched(dense), *args, **kwargs)
    engine.socket.send_string(engine.topic, flags=zmq.SNDMORE)
    engine.socket.send_pyobj(tally.digest)
    tally.report(engine, "rank 0, the trainer")
    return sent


@weight_sync.wrap(
    f"{_ENGINE}.finalize",
    uses=(f"{_ENGINE}.rebuild_group", f"{_ENGINE}.pyhccl"),
    why="With rebuild_group=True, the job ends after the first sync: upstream calls destroyComm, which vllm-ascend's "
    "PyHccl does not have (`AttributeError: 'PyHcclCommunicator' object has no attribute 'destroyComm'`).",
    how="We drop a communicator without destroyComm, as vllm-ascend's own weight transfer does.",
    link="none: nobody seems to have reported it; rebuild_group is off by default",
    retired_by=AllOf(Defines(f"{_ENGINE}.finalize"), Not(Calls(f"{_ENGINE}.finalize", "destroyComm"))),
    requires=Defines(f"{_ENGINE}.finalize"),
)
def drop_communicator_without_destroy(
    original: Callable[[CheckpointEngine], object], engine: CheckpointEngine
) -> object:
    """End a sync. With rebuild_group, a communicator without a destroyComm method is dropped instead of destroyed."""
    if engine.rebuild_group and engine.pyhccl is not None and not hasattr(engine.pyhccl, "destroyComm"):
        from .checking import DroppedCommunicator

        # Upstream only calls destroyComm and then drops the communicator.
        engine.pyhccl = DroppedCommunicator()
    return original(engine)


@weight_sync.wrap(
    f"{_SENDER}._init_socket",
    uses=(f"{_SENDER}.socket",),
    why="If the worker of the rollout engine fails while it loads a bucket, the process that sends the next bucket "
    "waits forever and prints nothing.",
    how="The socket to the worker waits at most VERL_NPU_WEIGHT_SYNC_TIMEOUT seconds.",
    link="none: nobody seems to have reported it",
    retired_by=_HAS_TIMEOUT,
    requires=Defines(f"{_SENDER}._init_socket"),
)
def limit_wait_for_engine_worker(original: Callable[[Sender], object], sender: Sender) -> object:
    """Open the socket to the rollout engine's worker with a timeout for each wait."""
    import zmq

    from ..settings import Settings

    made = original(sender)
    milliseconds = int(Settings.from_environment().timeout * 1000)
    sender.socket.setsockopt(zmq.RCVTIMEO, milliseconds)
    # Sending also waits if nobody is connected any more.
    sender.socket.setsockopt(zmq.SNDTIMEO, milliseconds)
    # Nobody may be left to receive unsent messages, so closing must not wait.
    sender.socket.setsockopt(zmq.LINGER, 0)
    return made


@weight_sync.wrap(
    f"{_SENDER}.async_send_weights",
    uses=(f"{_SENDER}.zmq_handle",),
    why="When the wait for the rollout engine's worker times out, ZeroMQ's error does not name the worker: "
    "`zmq.error.Again: Resource temporarily unavailable`.",
    how="We replace it with an error that names the worker's address and says where to look.",
    link="none: nobody seems to have reported it",
    retired_by=_HAS_TIMEOUT,
    requires=Defines(f"{_SENDER}.async_send_weights"),
)
async def explain_engine_worker_timeout(
    original: Callable[..., Awaitable[object]], sender: Sender, weights: Iterable[Weight] | AsyncIterable[Weight]
) -> object:
    """Send weights to the rollout engine's worker. Raises TransferError if the worker does not receive the weights in
    time."""
    import zmq

    from ..settings import WAIT_LONGER, Settings

    try:
        return await original(sender, weights)
    except Exception as error:
        # Upstream's clean-up also fails if the worker has ended, because their shared memory is gone.
        if not isinstance(error, zmq.Again) and not isinstance(error.__context__, zmq.Again):
            raise
        timeout = Settings.from_environment().timeout
        raise TransferError(
            subject="checkpoint engine",
            found=f"the rollout engine's worker at {sender.zmq_handle} received no weights for {timeout:g} s",
            fix="check the log of the worker, which has exited or failed to load the weights",
            override=WAIT_LONGER,
        ) from error
