"""VERL_NPU_WEIGHT_SYNC_CHECK over verl's own checkpoint engine: what was sent has arrived, and the engine holds it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .... import reporting
from ....errors import TransferError
from ....registry.source.probe import Defines, Never
from ..engines.processing import lay_out_experts_for_loading
from ..engines.vllm import VLLMEngine, Worker
from ..feature import weight_sync
from ..settings import Check, Settings
from ..transport.digest import Digest
from ..transport.drawing import Weight, each
from .protocols import CheckpointEngine

if TYPE_CHECKING:
    import torch

__all__ = ["Tally", "brings_adapter", "publish", "requested"]

_RECEIVE = "verl.checkpoint_engine.hccl_checkpoint_engine:HCCLCheckpointEngine.receive_weights"
_WORKER = "verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension"
_PROOF = "_verl_npu_proof"
_SYNCS = "_verl_npu_syncs"
_LINK = "none: nobody seems to have asked for it"
_NEVER_RETIRED = Never("a check of ours, for users who doubt what the engine holds")
_HELD_WHY = "If generated text looks wrong, nothing shows whether the engine holds the weights that it was given."


class Tally:
    """Counts the weights that pass, and hashes their names and bytes in their order."""

    def __init__(self) -> None:
        self._digest = Digest()
        self._tensors = 0

    @property
    def digest(self) -> str:
        """The SHA-256 so far."""
        return str(self._digest)

    @property
    def tensors(self) -> int:
        """How many were counted."""
        return self._tensors

    def add(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Count one more, and return it."""
        self._digest.add(name, tensor)
        self._tensors += 1
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


@dataclass(frozen=True, slots=True)
class _Noted:
    """What is known of a sync that is on its way into a worker."""

    engine: VLLMEngine
    tally: Tally


def requested(check: Check = Check.CHECKSUMS) -> bool:
    """Return whether the user requested that check, or more."""
    setting = Settings.from_environment().check
    return setting is check or setting is Check.ENGINE


def brings_adapter(arguments: Mapping[str, object]) -> bool:
    """Return whether a sync with these arguments of upstream's brings a LoRA adapter alone, its base being there."""
    return bool(arguments.get("peft_config") and arguments.get("base_sync_done"))


def publish(engine: CheckpointEngine, tally: Tally) -> None:
    """Publish to the rollouts, after the last bucket, what was sent."""
    import zmq

    engine.socket.send_string(engine.topic, flags=zmq.SNDMORE)
    engine.socket.send_pyobj(tally.digest)
    tally.report(engine, "rank 0, the trainer")


@weight_sync.wrap(
    _RECEIVE,
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
    noted: _Noted | None = getattr(worker, _PROOF, None)
    if noted is not None:
        for name, tensor in weights:
            noted.tally.add(name, tensor)
        noted.engine.expect(weights)
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
    if brings_adapter(kwargs):
        return original(worker, *args, **kwargs)
    lay_out_experts_for_loading(worker.model_runner.model)
    if not requested(Check.ENGINE):
        return original(worker, *args, **kwargs)
    noted = _Noted(VLLMEngine(worker.model_runner), Tally())
    setattr(worker, _PROOF, noted)
    try:
        done = original(worker, *args, **kwargs)
    finally:
        setattr(worker, _PROOF, None)
    noted.tally.report(worker, "the engine's worker", f", {noted.engine.prove()}")
    return done
