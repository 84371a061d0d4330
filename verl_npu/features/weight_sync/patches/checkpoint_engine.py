"""Patches of verl's own HCCL checkpoint engine, which syncs weights from v0.7.1 on.

With VERL_NPU_WEIGHT_SYNC_CHECK they show as well that what was sent has arrived, and that the engine holds it.
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
_WAITS_NO_LONGER = AnyOf(
    Calls(f"{_SENDER}._init_socket", "setsockopt", given=Key("RCVTIMEO")),
    Calls(f"{_SENDER}.async_send_weights", "poll"),
)
_RECEIVE = f"{_ENGINE}.receive_weights"
_WORKER = "verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension"
_PROOF = "_verl_npu_proof"
_LINK = "none: nobody seems to have asked for it"
_NEVER_RETIRED = Never("a check of ours, for users who doubt what the engine holds")
_HELD_WHY = "If generated text looks wrong, nothing shows whether the engine holds the weights that it was given."


# Upstream's own, which carry no types.
Broadcast: TypeAlias = Any
"""verl's BroadcastOperation, which moves one bucket of its checkpoint engine."""
Sender: TypeAlias = Any
"""verl's BucketedWeightSender, which hands weights to the worker of a rollout engine."""


@weight_sync.wrap(
    _RECEIVE,
    uses=(f"{_ENGINE}.rank", f"{_ENGINE}.socket"),
    why="If generated text looks wrong, nothing shows whether a rollout received what the trainer sent.",
    how="With VERL_NPU_WEIGHT_SYNC_CHECK the SHA-256 over all names and bytes is compared with the trainer's.",
    link=_LINK,
    retired_by=_NEVER_RETIRED,
    requires=Defines(_RECEIVE),
)
async def compare_received_weights_with_sent(
    original: Callable[..., AsyncIterable[Weight]], engine: CheckpointEngine, *args: object, **kwargs: object
) -> AsyncIterator[Weight]:
    """Receive the weights of one sync. Raises TransferError if they are not those that were sent."""
    # Imported here, as all that moves or proves weights: most processes of a job do neither.
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
            expected=f"the weights that rank 0, the trainer, sent, with the sha256 {sent[:16]}",
            found=f"that the {tally.tensors} weights that arrived have the sha256 {tally.digest[:16]}",
            fix="the bytes changed on their way: check the links between these NPUs, and HCCL's own log",
        )
    tally.report(engine, f"rank {engine.rank}")


@weight_sync.wrap(
    f"{_WORKER}._update_weights",
    why=_HELD_WHY,
    how="With VERL_NPU_WEIGHT_SYNC_CHECK=engine note is taken of each weight before it is loaded, for the proof.",
    link=_LINK,
    retired_by=_NEVER_RETIRED,
    requires=Defines(f"{_WORKER}._update_weights"),
)
def note_given_weights_for_proof(
    original: Callable[..., object], worker: Worker, weights: Sequence[Weight], *args: object, **kwargs: object
) -> object:
    """Load a bucket."""
    noted: tuple[VLLMEngine, Tally] | None = getattr(worker, _PROOF, None)
    if noted is not None:
        proven, tally = noted
        for name, tensor in weights:
            tally.add(name, tensor)
        proven.expect(weights)
    return original(worker, weights, *args, **kwargs)


@weight_sync.wrap(
    f"{_WORKER}.update_weights_from_ipc",
    why="From 0.13 on vllm-ascend transposes experts whenever their weights are processed, which upstream does after "
    "each sync, and transposes them back only as the engine wakes up. In an engine that did not sleep the second sync "
    f"fails, or garbles square experts without an error. {_HELD_WHY}",
    how="Transposed experts are laid out for the loader before it loads. With VERL_NPU_WEIGHT_SYNC_CHECK=engine what "
    "the engine holds in the end is compared with what it was given, bit for bit.",
    link="none: nobody seems to have reported it for an engine that does not sleep",
    retired_by=Never("it is vllm-ascend's doing, and which version is installed is not seen from verl's source"),
    requires=Defines(f"{_WORKER}.update_weights_from_ipc"),
)
def process_weights_once_and_prove_them(
    original: Callable[..., object], worker: Worker, *args: object, **kwargs: object
) -> object:
    """Take one sync's weights. Raises EngineError if the engine then does not hold them."""
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
    why="If PyHccl finds no libhccl, it broadcasts nothing, without an error. Names that the trainer publishes before "
    "a rollout has subscribed are lost: that rollout loads wrong weights or waits for ever.",
    how="A disabled communicator is an error, and the trainer publishes calls until every rollout has heard one.",
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
    """Make the group. Raises GroupError if its communicator would move nothing, or a rollout hears nothing."""
    from ..settings import Settings
    from .checking import describe, wait_for_subscriptions

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
    uses=(f"{_MODULE}:BroadcastOperation.rank",),
    why="If the trainer dies during a sync, each rollout waits for the next bucket for ever and prints nothing.",
    how="A rollout waits VERL_NPU_WEIGHT_SYNC_TIMEOUT seconds and then raises an error that names the trainer.",
    link="none: nobody seems to have reported it",
    retired_by=AnyOf(
        Calls(_RUN, "poll"), Calls(f"{_ENGINE}._connect_zmq_client", "setsockopt", given=Key("RCVTIMEO"))
    ),
    requires=Defines(_RUN),
)
def limit_wait_for_bucket(original: Callable[[Broadcast], object], operation: Broadcast) -> object:
    """Move one bucket. Raises TransferError if the trainer announces none in time."""
    import zmq

    from ..settings import WAIT_LONGER, Settings

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
    uses=[
        f"{_MODULE}:BroadcastOperation.{name}"
        for name in ("rank", "pyhccl", "bucket", "metadata", "socket", "topic", "_task", "_run()")
    ],
    why="v0.9.0 broadcasts each bucket in another thread than the one that has set its NPU, and the sync ends with an "
    "HCCL error. Upstream took it back for the next release.",
    how="A bucket is broadcast in the thread that asks for it, as in every other release.",
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
    uses=[f"{_ENGINE}.{name}" for name in ("rank", "socket", "topic")],
    why="A weight that is not contiguous ends the sync on the trainer with `RuntimeError: view size is not compatible "
    "with input tensor's size and stride`, and the rollouts wait for ever.",
    how="Such a weight is made contiguous before it is sent.",
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
    """Send weights, contiguous or not. If the user requested a check, publish afterwards what was sent."""
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
    why="With rebuild_group=True the job ends after the first sync: upstream calls destroyComm, and vllm-ascend's "
    "PyHccl has none (`AttributeError: 'PyHcclCommunicator' object has no attribute 'destroyComm'`).",
    how="A communicator without destroyComm is dropped, as vllm-ascend's own weight transfer does it.",
    link="none: nobody seems to have reported it; rebuild_group is off by default",
    retired_by=AllOf(Defines(f"{_ENGINE}.finalize"), Not(Calls(f"{_ENGINE}.finalize", "destroyComm"))),
    requires=Defines(f"{_ENGINE}.finalize"),
)
def drop_communicator_without_destroy(
    original: Callable[[CheckpointEngine], object], engine: CheckpointEngine
) -> object:
    """End a sync, and with rebuild_group the group."""
    if engine.rebuild_group and engine.pyhccl is not None and not hasattr(engine.pyhccl, "destroyComm"):
        from .checking import Dropped

        # Upstream only calls its destroyComm, then drops it.
        engine.pyhccl = Dropped()
    return original(engine)


@weight_sync.wrap(
    f"{_SENDER}._init_socket",
    uses=(f"{_SENDER}.socket",),
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

    from ..settings import Settings

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
    uses=(f"{_SENDER}.zmq_handle",),
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

    from ..settings import WAIT_LONGER, Settings

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
