"""Checks for weight syncs through verl's checkpoint engine."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import AsyncIterable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from .... import reporting
from ....errors import GroupError
from ..settings import WAIT_LONGER, Check, Settings
from ..transport.tensors import Weight, digest_of, each

if TYPE_CHECKING:
    import torch

_SYNCS = "_verl_npu_syncs"
# A call reaches a subscriber within about a millisecond. Until it does, the trainer calls again.
_CALL_MILLISECONDS = 100


# Upstream's objects, which have no types.
CheckpointEngine: TypeAlias = Any
"""verl's HCCLCheckpointEngine."""
Communicator: TypeAlias = Any
"""vllm-ascend's PyHccl."""
Socket: TypeAlias = Any
"""A ZeroMQ socket."""


class Tally:
    """A counter of weights, which also hashes their names and digests in order."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.tensors = 0

    @property
    def digest(self) -> str:
        """The SHA-256 of all weights counted so far."""
        return self._hash.hexdigest()

    def add(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Add a weight to the count, and return the weight unchanged."""
        self._hash.update(name.encode() + b"\0")
        self._hash.update(digest_of(tensor).to_bytes(8, "little"))
        self.tensors += 1
        return tensor

    def watched(self, weights: Iterable[Weight] | AsyncIterable[Weight]) -> Iterable[Weight] | AsyncIterable[Weight]:
        """Return an iterator that yields the same weights, and counts each weight as it is consumed."""
        return each(weights, self.add)

    def report(self, owner: object, who: str, held: str = "") -> None:
        """Report that this sync is complete. The report includes a sequence number, which counts the syncs of
        `owner`."""
        number = getattr(owner, _SYNCS, 0) + 1
        setattr(owner, _SYNCS, number)
        reporting.report(
            f"weight sync {number} of the checkpoint engine: {who} (pid {os.getpid()}): {self.tensors} tensors, "
            f"sha256 {self.digest[:16]}{held}"
        )


def requested() -> bool:
    """Return whether the user requested a comparison of sent and received weights."""
    return Settings.from_environment().check is not Check.NONE


def proof_requested() -> bool:
    """Return whether the user requested a proof that the engine holds the weights that it received."""
    return Settings.from_environment().check is Check.ENGINE


def brings_adapter(arguments: Mapping[str, object]) -> bool:
    """Return whether a sync that upstream starts with these arguments transfers only a LoRA adapter, after an earlier
    sync has transferred the base model."""
    return bool(arguments.get("peft_config") and arguments.get("base_sync_done"))


def describe(engine: CheckpointEngine) -> str:
    """Return a human-readable name for this rank of a checkpoint engine."""
    return f"checkpoint engine {engine.group_name!r}, rank {engine.rank} of {engine.world_size}"


def wait_for_subscriptions(engine: CheckpointEngine, communicator: Communicator, timeout: float) -> None:
    """Make every rank wait until each rollout receives the trainer's messages.

    The trainer sends numbered test messages until all rollouts have received the latest one. If a rollout receives no
    message for `timeout` seconds, all ranks raise a GroupError that names the rollout. After this function returns, a
    rollout waits at most `timeout` seconds for each bucket.
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
                found=f"rank {deaf} received no message from rank 0, the trainer, for {timeout:g} s",
                fix="check that the hosts can reach each other, and that no firewall between them blocks the "
                "connection",
                override=WAIT_LONGER,
            )


def _heard(socket: Socket, call: int) -> bool:
    while socket.poll(_CALL_MILLISECONDS):
        socket.recv_string()
        if socket.recv_pyobj() == call:
            return True
    return False


class DroppedCommunicator:
    """A placeholder for a communicator that has no destroyComm method. Such a communicator cannot be destroyed
    explicitly, so the last reference to it is dropped instead."""

    comm = None

    def destroyComm(self, comm: None) -> None:
        """Do nothing, because the communicator is already dropped."""
