"""The subscriptions of rollouts to what the trainer publishes over verl's checkpoint engine."""

from __future__ import annotations

import time

from ....errors import GroupError
from ..settings import WAIT_LONGER
from .protocols import CheckpointEngine, Communicator, Socket

__all__ = ["describe", "wait_for_subscriptions"]

# A call that reaches a subscriber is there within a millisecond or so; until it does, the trainer calls again.
_CALL_MILLISECONDS = 100


def describe(engine: CheckpointEngine) -> str:
    """Return a name for one rank of a checkpoint engine."""
    return f"checkpoint engine {engine.group_name!r}, rank {engine.rank} of {engine.world_size}"


def wait_for_subscriptions(engine: CheckpointEngine, communicator: Communicator, timeout: float) -> None:
    """Return on all ranks once each rollout has heard the trainer and has read every call.

    Afterwards a rollout waits at most `timeout` seconds for each bucket. Raises GroupError on all ranks if a rollout
    hears nothing for `timeout` seconds; it names the rank.
    """
    import torch
    import zmq

    deadline = time.monotonic() + timeout
    if engine.rank > 0:
        engine.socket.setsockopt(zmq.RCVTIMEO, int(timeout * 1000))
    call = 0
    while True:
        call += 1
        here = torch.zeros(engine.world_size, dtype=torch.int32, device=communicator.device)
        if engine.rank == 0:
            engine.socket.send_string(engine.topic, flags=zmq.SNDMORE)
            engine.socket.send_pyobj(call)
            # The trainer's clock decides, so that all ranks give up together.
            here[0] = int(time.monotonic() < deadline)
        else:
            here[engine.rank] = int(_heard(engine.socket, call))
        calling, *heard = communicator.all_reduce(here).tolist()
        if all(heard):
            return
        if not calling:
            deaf = ", ".join(str(rank) for rank, hears in enumerate(heard, start=1) if not hears)
            raise GroupError(
                subject=describe(engine),
                expected="every rollout to hear rank 0, the trainer",
                found=f"that rank {deaf} heard nothing of what rank 0, the trainer, published for {timeout:g} s",
                fix="let the hosts of the two reach each other: a firewall may be between them",
                override=WAIT_LONGER,
            )


def _heard(socket: Socket, call: int) -> bool:
    while socket.poll(_CALL_MILLISECONDS):
        socket.recv_string()
        if socket.recv_pyobj() == call:
            return True
    return False
