"""The rollout engine's memory, by its own rule: a share of the NPU, of which the cache has what is left."""

from __future__ import annotations

from dataclasses import dataclass

from verl_npu.features.rollout.data_parallel import SETTINGS as DATA_PARALLEL
from verl_npu.language import gettext as _

from ..jobs.keys import FREE_CACHE_ENGINE, ROLES, ROLLOUT, is_separate, rollout_npus, size
from ..jobs.settings import Settings
from .hardware import Hardware
from .model import Model
from .share import Share

_BYTES = 2  # of bfloat16
_BUFFERS = 2 << 30
_BUCKETS = 2
"""That a checkpoint engine has on each NPU of both sides, senders or not: `prepare` of HCCLCheckpointEngine."""
_HANDED_ON = 1
"""More of a server's, with which its worker hands the weights to the engine: verl's `BucketedWeightSender`."""
_CHECKPOINT_ENGINE = f"{ROLLOUT}.checkpoint_engine"
BUCKET = f"{_CHECKPOINT_ENGINE}.update_weights_bucket_megabytes"


@dataclass(frozen=True, slots=True)
class Rollout:
    """What an engine has on one NPU. Bytes.

    Source: `gpu_memory_utilization` in vLLM's documents; its worker refuses to start if less than that share is free.
    """

    tensor: int
    """NPUs among which a layer is divided."""
    utilization: float
    taken: int
    weights: int
    """That the trainer's NPUs have; 0 if the engine has NPUs of its own."""
    engine_weights: int
    npus: int
    """Of all engines together."""
    buffers: int
    """An assumption: the engine's own activations and graphs."""
    cache: int
    token: int
    """Of the cache, for one token."""
    sequences: int
    """Of full length that the cache holds at once."""
    least: int
    """That the engine needs for its weights, its buffers and one sequence of full length."""
    own_npus: bool
    """Whether the trainer's NPUs have no engine."""
    servers: int
    """NPUs that only serve."""
    bucket: int
    """Of the checkpoint engine that brings the weights to them; 0 if none does."""
    sleeps: bool
    """Whether servers give their cache back during a sync: `release_kv_cache` in vllm_async_server.py."""
    eager: bool
    """Whether it issues its operators one by one, without graphs."""
    notes: tuple[str, ...] = ()

    @property
    def needed(self) -> int:
        """What it takes, or would have to take for a single sequence."""
        return max(self.taken, self.least)

    @property
    def buckets(self) -> int:
        """What a sync takes of a trainer's NPU."""
        return _BUCKETS * self.bucket

    @property
    def buckets_of_server(self) -> int:
        """What it takes of a server's; of an NPU without IPC the last one is in the host's memory."""
        return (_BUCKETS + _HANDED_ON) * self.bucket


def rollout_of(settings: Settings, model: Model, share: Share, hardware: Hardware) -> Rollout:
    """Return what the engine of a script takes."""
    tensor = size(settings, f"{ROLLOUT}.tensor_model_parallel_size")
    utilization = settings.number(f"{ROLLOUT}.gpu_memory_utilization", 0.5)
    servers = rollout_npus(settings)
    # Those of v1's trainer serve before its first step and in validations too, unless that is switched off.
    own_npus = servers > 0 and not (is_separate(settings) and settings.get(f"{ROLES}.hybrid_engine") is not False)
    sends = servers > 0 and settings.text(f"{_CHECKPOINT_ENGINE}.backend") not in ("", "naive")
    bucket = size(settings, BUCKET) << 20 if sends else 0
    weights = _weights(settings, model, tensor)
    taken = int(utilization * hardware.memory.value)
    token = model.cache // min(tensor, model.key_heads)
    cache = taken - weights - _BUFFERS
    length = share.prompt + share.response
    notes = []
    if cache < token * length:
        notes.append(
            _(
                "rollout: gpu_memory_utilization {utilization} leaves no room for the key-value cache of "
                "one sequence of {length} tokens beside the engine's weights"
            ).format(utilization=utilization, length=length)
        )
    return Rollout(
        tensor=tensor,
        utilization=utilization,
        taken=taken,
        weights=0 if own_npus else weights,
        engine_weights=weights,
        npus=servers or share.world,
        buffers=_BUFFERS,
        cache=max(cache, 0),
        token=token,
        sequences=max(cache, 0) // max(token * length, 1),
        least=weights + _BUFFERS + token * length,
        own_npus=own_npus,
        servers=servers,
        bucket=bucket,
        sleeps=settings.truth(FREE_CACHE_ENGINE),
        eager=settings.truth(f"{ROLLOUT}.enforce_eager"),
        notes=tuple(notes),
    )


def _weights(settings: Settings, model: Model, tensor: int) -> int:
    """Bytes on one NPU. With expert parallelism vLLM divides the experts among all NPUs of a replica."""
    among = tensor
    if settings.whole(f"{ROLLOUT}.expert_parallel_size", 1) > 1 or settings.truth(f"{ROLLOUT}.enable_expert_parallel"):
        among = tensor * max(size(settings, f"{ROLLOUT}.{name}") for name in DATA_PARALLEL)
    return ((model.parameters - model.experts) // tensor + model.experts // among) * _BYTES
