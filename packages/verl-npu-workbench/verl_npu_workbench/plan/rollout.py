"""Computes the rollout engine's memory by the engine's own rule: it takes a fixed share of the NPU and uses the rest
of that share as cache."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from verl_npu.errors import PlanError
from verl_npu.features.rollout import data_parallel
from verl_npu.language import gettext as _
from verl_npu.registry.source.probe import AnyOf, Defines
from verl_npu.registry.source.tree import SourceTree

from ..jobs.keys import (
    FREE_CACHE_ENGINE,
    REWARD_MODELS,
    ROLES,
    ROLLOUT,
    ROLLOUT_TENSOR,
    is_separate,
    rollout_npus,
    size,
)
from ..jobs.settings import Settings
from .hardware import GIB, Hardware
from .model import Model
from .share import Share

_BYTES = 2  # of bfloat16
_BUFFERS = 2 << 30
_BUCKETS = 2
"""The number of buckets that a checkpoint engine has on each NPU of the trainer and of the servers: `prepare` of
HCCLCheckpointEngine."""
_WORKER_BUCKETS = 1
"""The number of additional buckets on a server, through which its worker passes the weights on: verl's
`BucketedWeightSender`."""
_TEACHERS = r"distillation\.teacher_models?(\.\w+)?\.model_path"
_CHECKPOINT_ENGINE = f"{ROLLOUT}.checkpoint_engine"
BUCKET = f"{_CHECKPOINT_ENGINE}.update_weights_bucket_megabytes"
_INSIDE = AnyOf(
    *(
        Defines(f"verl.workers.rollout.vllm_rollout.{module}:vLLMAsyncRollout")
        for module in ("vllm_rollout", "vllm_rollout_spmd")
    )
)
"""Holds up to v0.7.0, where vLLM's workers run in the trainer's processes."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """The memory of an engine on one NPU, in bytes.

    Source: `gpu_memory_utilization` in vLLM's documentation. vLLM's worker refuses to start if less than this fraction
    of the memory is free.
    """

    tensor: int
    """The number of NPUs among which a layer is divided."""
    utilization: float
    taken: int
    weights: int
    """The engine's weights on each of the trainer's NPUs. It is 0 if the engine has separate NPUs."""
    engine_weights: int
    npus: int
    """The number of NPUs of all engines together."""
    buffers: int
    """The engine's own activations and graphs. The number is an assumption."""
    token: int
    """The cache for one token."""
    sequences: int
    """The number of full-length sequences that the cache can hold at the same time."""
    least: int
    """The least memory that the engine needs: for its weights, its buffers, and one full-length sequence."""
    own_npus: bool
    """Whether the engines run only on separate NPUs, so that the trainer's NPUs have none."""
    servers: int
    """The number of NPUs that only run servers."""
    bucket: int
    """The size of one bucket of the checkpoint engine that sends the weights to the servers. It is 0 if there is no
    such engine."""
    sleeps: bool
    """Whether servers free their cache during a weight sync: `release_kv_cache` in vllm_async_server.py."""
    eager: bool
    """Whether the engine launches its operators one by one, without graphs."""
    notes: tuple[str, ...] = ()

    @property
    def needed(self) -> int:
        """The memory that the engine takes, but at least the engine's minimum."""
        return max(self.taken, self.least)

    @property
    def buckets(self) -> int:
        """The memory that the buckets of a weight sync take on each of the trainer's NPUs."""
        return _BUCKETS * self.bucket

    @property
    def buckets_of_server(self) -> int:
        """The memory that the buckets of a weight sync take on a server's NPU. Without IPC, the last bucket is in the
        host's memory instead, but this figure still includes it."""
        return (_BUCKETS + _WORKER_BUCKETS) * self.bucket


def runs_inside(settings: Settings, verl: SourceTree) -> bool:
    """Return whether the script's engine runs in the trainer's processes."""
    return settings.text(f"{ROLLOUT}.name") == "vllm" and bool(_INSIDE.answer(lambda atom: atom.holds(verl)))


def rollout_of(
    settings: Settings,
    model: Model,
    share: Share,
    hardware: Hardware,
    exports: Mapping[str, str] = MappingProxyType({}),
) -> Rollout:
    """Return the memory that a script's rollout engine uses. `exports` contains the script's environment variables."""
    tensor = size(settings, ROLLOUT_TENSOR)
    utilization = settings.number(f"{ROLLOUT}.gpu_memory_utilization", 0.5)
    servers = rollout_npus(settings)
    # In v1's trainer, the trainer's NPUs also serve before the first step and in validations, unless switched off.
    own_npus = servers > 0 and not (is_separate(settings) and settings.get(f"{ROLES}.hybrid_engine") is not False)
    sends = servers > 0 and settings.text(f"{_CHECKPOINT_ENGINE}.backend") not in ("", "naive")
    bucket = size(settings, BUCKET) << 20 if sends else 0
    weights = _weights(settings, model, tensor, exports)
    taken = int(utilization * hardware.memory.value)
    token = model.cache // min(tensor, model.key_heads)
    cache = taken - weights - _BUFFERS
    length = share.prompt + share.response
    notes = []
    if cache < token * length:
        notes.append(
            _(
                "rollout: with gpu_memory_utilization {utilization}, the engine's weights leave too little "
                "memory for the key-value cache of one sequence of {length} tokens"
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


def _weights(settings: Settings, model: Model, tensor: int, exports: Mapping[str, str]) -> int:
    """Return the bytes of the engine's weights on one NPU.

    Data-parallel engines share the experts, with or without expert parallelism. Source: `FusedMoEParallelConfig.make`
    of vLLM 0.9.1 to 0.23, and `infer_tp` in verl's async_sglang_server.py. vLLM reads the number of these engines from
    an environment variable if its arguments do not set it.
    """
    data = max(size(settings, f"{ROLLOUT}.{name}") for name in data_parallel.SETTINGS)
    exported = exports.get(data_parallel.SIZE, "")
    if data == 1 and exported.isdecimal() and settings.text(f"{ROLLOUT}.name") != "sglang":
        data = max(int(exported), 1)
    return ((model.parameters - model.experts) // tensor + model.experts // (tensor * data)) * _BYTES


def other_engines(settings: Settings, hardware: Hardware, model: Callable[[str], Model]) -> Iterator[str]:
    """Yield a note for each inference engine other than the rollout engine, such as the engine of a reward model or of
    a teacher. No phase of a plan runs these engines.

    `model` creates a model from its path.
    """
    for path, section in _others(settings):
        tensor = size(settings, f"{section}.tensor_model_parallel_size")
        taken = settings.number(f"{section}.gpu_memory_utilization", 0.5) * hardware.memory.value
        try:
            weights = model(path).parameters * _BYTES // tensor
        except PlanError:
            yield _("{path}: the model's size is unknown, so its engine is not planned").format(path=path)
            continue
        said = _("{path}: its engine takes {taken:.1f} GiB of each of its NPUs, {weights:.1f} GiB for its weights")
        if weights + _BUFFERS > taken:
            said = _(
                "{path}: does not fit; its engine may take {taken:.1f} GiB, and its weights need {weights:.1f} GiB"
            )
        yield said.format(path=path, taken=taken / GIB, weights=weights / GIB)


def _others(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the path of each model that scores answers, and the section of its engine's settings."""
    for section in REWARD_MODELS:
        path = settings.text(f"{section}.model_path") or settings.text(f"{section}.model.path")
        # Before v0.7.0, a reward model has workers of its own, and no engine.
        if settings.truth(f"{section}.enable") and path and settings.matching(rf"{re.escape(section)}\.rollout\..*"):
            yield path, f"{section}.rollout"
    if settings.truth("distillation.enabled"):
        for key in settings.matching(_TEACHERS):
            if path := settings.text(key):
                yield path, f"{key.removesuffix('.model_path')}.inference"
