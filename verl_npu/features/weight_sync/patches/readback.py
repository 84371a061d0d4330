"""VERL_NPU_WEIGHT_SYNC_CHECK over verl's own checkpoint engine: what was sent has arrived, and the engine holds it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

from .... import reporting
from ....registry.source.probe import Defines, Never
from ..engine import VLLMEngine
from ..errors import TransferError
from ..feature import weight_sync
from ..settings import Check, Settings
from ..transport.checksum import as_bytes
from ..transport.drawing import each

__all__ = ["Tally", "checking", "publish"]

_RECEIVE = "verl.checkpoint_engine.hccl_checkpoint_engine:HCCLCheckpointEngine.receive_weights"
_WORKER = "verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension"
_SENT = "_verl_npu_sent"
_SYNCS = "_verl_npu_syncs"
_LINK = "none: nobody seems to have asked for it"
_OURS = Never("a check of ours, for users who doubt what the engine holds")


class Tally:
    """Counts the weights that pass, and hashes their names and bytes in their order."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.tensors = 0

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def add(self, name: str, tensor: Any) -> Any:
        """Count one more, and give it back."""
        self._hash.update(name.encode() + b"\0")
        self._hash.update(as_bytes(tensor).cpu().numpy().tobytes())
        self.tensors += 1
        return tensor

    def watched(self, weights: Any) -> Any:
        """The same weights, counted as they are drawn."""
        return each(weights, self.add)

    def tell(self, owner: Any, who: str, held: str = "") -> None:
        """Say it, with the number of the owner's sync."""
        number = getattr(owner, _SYNCS, 0) + 1
        setattr(owner, _SYNCS, number)
        reporting.report(
            f"weight sync {number} of the checkpoint engine: {who} (pid {os.getpid()}): {self.tensors} tensors, "
            f"sha256 {self.digest[:16]}{held}"
        )


def checking(check: Check = Check.CHECKSUMS) -> bool:
    """Whether the user asked for that check, or for more."""
    asked = Settings.from_environment().check
    return asked is check or asked is Check.ENGINE


def publish(engine: Any, tally: Tally) -> None:
    """Tell the rollouts, after the last bucket, what was sent."""
    import zmq

    engine.socket.send_string(engine.topic, flags=zmq.SNDMORE)
    engine.socket.send_pyobj(tally.digest)
    tally.tell(engine, "rank 0, the trainer")


@weight_sync.wrap(
    _RECEIVE,
    why="nothing says whether a rollout got what the trainer sent",
    how="with VERL_NPU_WEIGHT_SYNC_CHECK the names and bytes of both are compared",
    link=_LINK,
    retired_by=_OURS,
    requires=Defines(_RECEIVE),
)
async def arrived(original: Callable[..., Any], engine: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
    """Receive the weights of one sync. Raises TransferError where they are not those that were sent."""
    weights = original(engine, *args, **kwargs)
    if not checking():
        async for item in weights:
            yield item
        return
    tally = Tally()
    async for item in tally.watched(weights):
        yield item
    engine.socket.recv_string()
    sent = engine.socket.recv_pyobj()
    if sent != tally.digest:
        raise TransferError(
            f"checkpoint engine, rank {engine.rank}: the {tally.tensors} weights that arrived have the sha256 "
            f"{tally.digest[:16]}, and rank 0, the trainer, sent {sent[:16]}"
        )
    tally.tell(engine, f"rank {engine.rank}")


@weight_sync.wrap(
    f"{_WORKER}._update_weights",
    why="nothing says whether the engine holds what it was given",
    how="with VERL_NPU_WEIGHT_SYNC_CHECK=engine a copy of each weight is kept until the sync is whole",
    link=_LINK,
    retired_by=_OURS,
    requires=Defines(f"{_WORKER}._update_weights"),
)
def kept(original: Callable[..., Any], worker: Any, weights: Any, *args: Any, **kwargs: Any) -> Any:
    """Load a bucket."""
    sent = getattr(worker, _SENT, None)
    if sent is not None:
        sent.update((name, tensor.detach().cpu().clone()) for name, tensor in weights)
    return original(worker, weights, *args, **kwargs)


@weight_sync.wrap(
    f"{_WORKER}.update_weights_from_ipc",
    why="nothing says whether the engine holds what it was given",
    how="with VERL_NPU_WEIGHT_SYNC_CHECK=engine its parameters are compared with that, bit for bit",
    link=_LINK,
    retired_by=_OURS,
    requires=Defines(f"{_WORKER}.update_weights_from_ipc"),
)
def compared(original: Callable[..., Any], worker: Any, *args: Any, **kwargs: Any) -> Any:
    """Take one sync's weights. Raises EngineError where the engine then does not hold them."""
    adapter = bool(kwargs.get("peft_config") and kwargs.get("base_sync_done"))
    if adapter or not checking(Check.ENGINE):
        return original(worker, *args, **kwargs)
    sent: dict[str, Any] = {}
    setattr(worker, _SENT, sent)
    try:
        done = original(worker, *args, **kwargs)
        VLLMEngine(worker.model_runner.model).compare(sent)
    finally:
        setattr(worker, _SENT, None)
    tally = Tally()
    for name, tensor in sent.items():
        tally.add(name, tensor)
    tally.tell(worker, "the engine's worker", ", the engine holds them bit for bit")
    return done
