"""What the patches of verl's checkpoint engine check, and what a sync with it is checked by."""

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
# A call that reaches a subscriber is there within a millisecond or so; until it does, the trainer calls again.
_CALL_MILLISECONDS = 100


# Upstream's own, which carry no types.
CheckpointEngine: TypeAlias = Any
"""verl's HCCLCheckpointEngine."""
Communicator: TypeAlias = Any
"""vllm-ascend's PyHccl."""
Socket: TypeAlias = Any
"""A socket of ZeroMQ."""


class Tally:
    """Counts the weights that pass, and hashes their names and digests in their order."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.tensors = 0

    @property
    def digest(self) -> str:
        """The SHA-256 so far."""
        return self._hash.hexdigest()

    def add(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Count one more, and return it."""
        self._hash.update(name.encode() + b"\0")
        self._hash.update(digest_of(tensor).to_bytes(8, "little"))
        self.tensors += 1
        return tensor

    def watched(self, weights: Iterable[Weight] | AsyncIterable[Weight]) -> Iterable[Weight] | AsyncIterable[Weight]:
        """Return the same weights, counted as they are drawn."""
        return each(weights, self.add)

    def report(self, owner: object, who: str, held: str = "") -> None:
        """Print a line with the number of the owner's sync."""
        number = getattr(owner, _SYNCS, 0) + 1
        setattr(owner, _SYNCS, number)
        reporting.report(
            f"weight sync {number} of the checkpoint engine: {who} (pid {os.getpid()}): {self.tensors} tensors, "
            f"sha256 {self.digest[:16]}{held}"
        )


def requested() -> bool:
    """Return whether the user requested that what is sent is compared with what arrives."""
    return Settings.from_environment().check is not Check.NONE


def proof_requested() -> bool:
    """Return whether the user requested a proof of what the engine holds."""
    return Settings.from_environment().check is Check.ENGINE


def brings_adapter(arguments: Mapping[str, object]) -> bool:
    """Return whether a sync with these arguments of upstream's brings a LoRA adapter alone, its base being there."""
    return bool(arguments.get("peft_config") and arguments.get("base_sync_done"))


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


class Dropped:
    """Stands in for a communicator that can only be forgotten, because it has no destroyComm."""

    comm = None

    def destroyComm(self, comm: None) -> None:
        """Nothing is left to destroy."""
