"""Patches of verl's own HCCL checkpoint engine, which syncs weights from v0.7.1 on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ....registry.source.probe import AllOf, AnyOf, Defines, Mentions, Not
from ..errors import GroupError, TransferError
from ..feature import weight_sync
from ..settings import Settings
from ..transport.drawing import each
from .readback import Tally, checking, publish

_MODULE = "verl.checkpoint_engine.hccl_checkpoint_engine"
_ENGINE = f"{_MODULE}:HCCLCheckpointEngine"
_RUN = f"{_MODULE}:BroadcastOperation._run"
_SENDER = "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:BucketedWeightSender"
_WAITS_NO_LONGER = AnyOf(
    Mentions(f"{_SENDER}._init_socket", "RCVTIMEO"), Mentions(f"{_SENDER}.async_send_weights", "poll")
)
# A call that reached a subscriber is there within a millisecond or so; until it is, the trainer calls again.
_CALL_MILLISECONDS = 100


@weight_sync.wrap(
    f"{_ENGINE}.init_process_group",
    why="vllm-ascend's PyHccl disables itself where it finds no libhccl, and then broadcasts nothing, without error. "
    "What the trainer publishes before a rollout's subscription has reached it is lost: that rollout takes the next "
    "bucket's names for this one's data, or waits for ever",
    how="a disabled communicator is an error; and the trainer calls until each rollout has heard it",
    link="https://github.com/vllm-project/vllm-ascend/issues/942",
    retired_by=AllOf(
        Mentions(f"{_ENGINE}.init_process_group", "disabled"),
        AnyOf(Mentions(f"{_ENGINE}._start_zmq_server", "XPUB"), Not(Mentions(f"{_ENGINE}._start_zmq_server", "PUB"))),
    ),
    requires=Defines(f"{_ENGINE}.init_process_group"),
)
def connected(original: Callable[..., Any], engine: Any, *args: Any, **kwargs: Any) -> Any:
    """Make the group. Raises GroupError where its communicator would move nothing, or a rollout hears nothing."""
    made = original(engine, *args, **kwargs)
    if engine.pyhccl is not None:
        if getattr(engine.pyhccl, "disabled", False):
            raise GroupError(
                f"{_describe(engine)}: PyHccl is disabled and would broadcast nothing: libhccl.so did not load "
                "(set HCCL_SO_PATH), or there is one rank only"
            )
        _subscribe(engine, Settings.from_environment().timeout)
    return made


@weight_sync.wrap(
    _RUN,
    why="a rollout whose trainer has died waits for its next bucket for ever, and a later one is never told",
    how="it waits VERL_NPU_WEIGHT_SYNC_TIMEOUT seconds",
    link="none: nobody seems to have reported it",
    retired_by=AnyOf(Mentions(_RUN, "poll"), Mentions(f"{_ENGINE}._connect_zmq_client", "RCVTIMEO")),
    requires=Defines(_RUN),
)
def awaited(original: Callable[..., Any], operation: Any) -> Any:
    """Move one bucket. Raises TransferError where the trainer announces none in time."""
    import zmq

    try:
        return original(operation)
    except zmq.Again as error:
        raise TransferError(
            f"checkpoint engine, rank {operation.rank}: rank 0, the trainer, announced no bucket for "
            f"{Settings.from_environment().timeout:g} s: look for its own error (VERL_NPU_WEIGHT_SYNC_TIMEOUT sets "
            "how long to wait)"
        ) from error


@weight_sync.wrap(
    f"{_ENGINE}.send_weights",
    why="it reads a weight as bytes by view(-1), which a tensor that is not contiguous refuses",
    how="such a tensor is made contiguous",
    link="none: nobody seems to have reported it",
    retired_by=Mentions(f"{_ENGINE}.send_weights", "contiguous"),
    requires=Defines(f"{_ENGINE}.send_weights"),
)
async def contiguous(original: Callable[..., Any], engine: Any, weights: Any, *args: Any, **kwargs: Any) -> Any:
    """Send weights in any layout, and where the user asked for a check, say afterwards what was sent."""
    dense = each(weights, lambda name, weight: weight.contiguous())
    if engine.rank != 0 or not checking():
        return await original(engine, dense, *args, **kwargs)
    tally = Tally()
    sent = await original(engine, tally.watched(dense), *args, **kwargs)
    publish(engine, tally)
    return sent


@weight_sync.wrap(
    f"{_ENGINE}.finalize",
    why="with rebuild_group it calls destroyComm, which vllm-ascend's PyHccl does not have: the job dies after a sync",
    how="such a communicator is dropped, as vllm-ascend's own weight transfer does",
    link="none: nobody seems to have reported it; rebuild_group is off by default",
    retired_by=AllOf(Defines(f"{_ENGINE}.finalize"), Not(Mentions(f"{_ENGINE}.finalize", "destroyComm"))),
    requires=Defines(f"{_ENGINE}.finalize"),
)
def dropped(original: Callable[..., Any], engine: Any) -> Any:
    """End a sync, and with rebuild_group the group."""
    if engine.rebuild_group and engine.pyhccl is not None and not hasattr(engine.pyhccl, "destroyComm"):
        engine.pyhccl = _Dropped()
    return original(engine)


@weight_sync.wrap(
    f"{_SENDER}._init_socket",
    why="where the rollout engine's worker fails while it loads a bucket, who hands it the next one waits for ever",
    how="it waits VERL_NPU_WEIGHT_SYNC_TIMEOUT seconds",
    link="none: nobody seems to have reported it",
    retired_by=_WAITS_NO_LONGER,
    requires=Defines(f"{_SENDER}._init_socket"),
)
def limited(original: Callable[..., Any], sender: Any) -> Any:
    """Open the socket to the rollout engine's worker, with a limit to what it waits for."""
    import zmq

    made = original(sender)
    milliseconds = int(Settings.from_environment().timeout * 1000)
    sender.socket.setsockopt(zmq.RCVTIMEO, milliseconds)
    # Sending waits as well, where nobody is connected any more.
    sender.socket.setsockopt(zmq.SNDTIMEO, milliseconds)
    # Nobody may be there to take what is still unsent: closing must not wait for them.
    sender.socket.setsockopt(zmq.LINGER, 0)
    return made


@weight_sync.wrap(
    f"{_SENDER}.async_send_weights",
    why="see weight_sync.limited: zmq says only that a resource is temporarily unavailable",
    how="an error that says who did not answer",
    link="none: nobody seems to have reported it",
    retired_by=_WAITS_NO_LONGER,
    requires=Defines(f"{_SENDER}.async_send_weights"),
)
async def acknowledged(original: Callable[..., Any], sender: Any, weights: Any) -> Any:
    """Hand weights to the rollout engine's worker. Raises TransferError where it takes none in time."""
    import zmq

    try:
        return await original(sender, weights)
    except Exception as error:
        # Its clean-up fails as well where the worker has ended, and took their shared memory with it.
        if not isinstance(error, zmq.Again) and not isinstance(error.__context__, zmq.Again):
            raise
        raise TransferError(
            f"the rollout engine's worker behind {sender.zmq_handle} took no weights for "
            f"{Settings.from_environment().timeout:g} s: it has ended, or failed to load them; its own error is in "
            "its log (VERL_NPU_WEIGHT_SYNC_TIMEOUT sets how long to wait)"
        ) from error


class _Dropped:
    """Stands where a communicator was that has no way to be destroyed but to be forgotten."""

    comm = None

    def destroyComm(self, comm: None) -> None:
        """Nothing is left to destroy."""


def _describe(engine: Any) -> str:
    return f"checkpoint engine {engine.group_name!r}, rank {engine.rank} of {engine.world_size}"


def _subscribe(engine: Any, timeout: float) -> None:
    """Return on all ranks once each rollout hears the trainer, and nothing is left unheard."""
    import torch
    import zmq

    deadline = time.monotonic() + timeout
    if engine.rank > 0:
        engine.socket.setsockopt(zmq.RCVTIMEO, int(timeout * 1000))
    call = 0
    while True:
        call += 1
        here = torch.zeros(engine.world_size, dtype=torch.int32, device=engine.pyhccl.device)
        if engine.rank == 0:
            engine.socket.send_string(engine.topic, flags=zmq.SNDMORE)
            engine.socket.send_pyobj(call)
            # The trainer's clock decides, so that all ranks give up together.
            here[0] = int(time.monotonic() < deadline)
        else:
            here[engine.rank] = int(_heard(engine.socket, call))
        calling, *heard = engine.pyhccl.all_reduce(here).tolist()
        if all(heard):
            return
        if not calling:
            deaf = [rank for rank, hears in enumerate(heard, start=1) if not hears]
            raise GroupError(
                f"{_describe(engine)}: rank {', '.join(map(str, deaf))} heard nothing of what rank 0, the trainer, "
                f"published for {timeout:g} s: a firewall between the two? (VERL_NPU_WEIGHT_SYNC_TIMEOUT sets how "
                "long to wait)"
            )


def _heard(socket: Any, call: int) -> bool:
    while socket.poll(_CALL_MILLISECONDS):
        socket.recv_string()
        if socket.recv_pyobj() == call:
            return True
    return False
