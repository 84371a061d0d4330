"""Lets Megatron run on one rank: no weights are loaded, because phantom tensors cannot hold them, and the neighbouring
pipeline stages are replaced."""

from __future__ import annotations

import copy
import functools
import importlib
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...extras import is_installed
from ..job import Phase

if TYPE_CHECKING:
    from megatron.core import ModelParallelConfig
    from omegaconf import DictConfig

_LOADER, _DISTRIBUTED_LOADER = "load_megatron_gptmodel_weights", "load_mcore_dist_weights"
"""Functions of verl that load a checkpoint into a model."""
_BRIDGES = (("mbridge.core.bridge", "Bridge", "load_weights"), ("megatron.bridge", "AutoBridge", "load_hf_weights"))
_MODULES = (
    "verl.utils.model",
    "verl.utils.megatron_utils",
    "verl.workers.megatron_workers",
    "verl.workers.engine.megatron.transformer_impl",
)
"""The modules that define or import these functions."""


def not_shown(roles: DictConfig) -> dict[Phase, str]:
    """Return the phases that one Megatron rank cannot run alone, each with the reason. Empty for trainers without
    Megatron."""
    actor, found = roles.actor, {}
    if actor.strategy == "megatron":
        found[Phase.CHECKPOINT] = "Megatron's own code would write files of zeros"
        if actor.megatron.pipeline_model_parallel_size > 1:
            found[Phase.WEIGHT_SYNC] = "the stages of a pipeline exchange lists of their weights, and a plan runs one"
        elif actor.megatron.get("use_mbridge") and actor.megatron.get("vanilla_mbridge") is False:
            found[Phase.WEIGHT_SYNC] = "Megatron-Bridge looks up the names of the weights in a checkpoint"
    return found


def prepare(roles: DictConfig) -> None:
    """Make Megatron's models run without weights and, with pipeline parallelism, without the adjacent stages.

    Call this after verl's workers are imported.
    """
    actor = roles.actor
    if actor.strategy != "megatron":
        return
    _leave_weights_out()
    if roles.model.get("trust_remote_code"):
        _provide_rope_theta()
    if actor.megatron.pipeline_model_parallel_size > 1:
        know_shapes(packed=bool(roles.model.get("use_remove_padding", True)))


def _leave_weights_out() -> None:
    """Make verl and the bridges that it uses load nothing into Megatron's models.

    Call this after verl's workers are imported. By then, MindSpeed has replaced the modules that the bridges import.
    """
    for module in filter(None, map(sys.modules.get, _MODULES)):
        if hasattr(module, _LOADER):
            setattr(module, _LOADER, _nothing)
        if load := getattr(module, _DISTRIBUTED_LOADER, None):
            setattr(module, _DISTRIBUTED_LOADER, _refusing_no_path(load))
    for name, kind, loader in _BRIDGES:
        if is_installed(name):
            setattr(getattr(importlib.import_module(name), kind), loader, _nothing)


def _provide_rope_theta() -> None:
    """Give DeepSeek configurations the attribute rope_theta, as the code in the models' own repositories does.

    mbridge 0.15.1 reads this attribute, but transformers' own class lacks it from v5 on. A plan's model comes without
    the code of its repository.
    """
    bridge: Any = importlib.import_module("mbridge.models.deepseek_v3").DeepseekV3Bridge
    original = bridge._build_config

    @functools.wraps(original)
    def _build_config(self: Any) -> object:
        told = self.hf_config
        if not hasattr(told, "rope_theta"):
            told.rope_theta = told.rope_parameters["rope_theta"]
        return original(self)

    bridge._build_config = _build_config


def _nothing(*_: object, **__: object) -> None:
    """Stand in for a function that loads a checkpoint."""


def _refusing_no_path(load: Callable[..., None]) -> Callable[..., None]:
    """Return a function that loads nothing from a distributed checkpoint, but raises upstream's error if the settings
    name no checkpoint."""

    def load_mcore_dist_weights(models: object, path: str | None, **said: object) -> None:
        if path is None:
            load(models, path, **said)

    return load_mcore_dist_weights


Shape = Sequence[int]


def know_shapes(packed: bool) -> None:
    """Make a pipeline stage receive tensors with the shapes that the adjacent stages would send. Call this once per
    process.

    `packed` is the model's use_remove_padding: whether sequences are packed without padding. Source: megatron-core
    0.12.1 and 0.16.0, megatron/core/pipeline_parallel/p2p_communication.py.

    Raises:
        NotImplementedError: plans do not support this megatron-core, or do not support padded sequences.
    """
    module = importlib.import_module("megatron.core.pipeline_parallel.p2p_communication")
    if hasattr(module, "_communicate"):
        _know_from_verl(module)
    elif hasattr(getattr(module, "P2PCommunicator", None), "_communicate_shapes"):
        if not packed:
            raise NotImplementedError("plans support pipelines only with packed sequences: use_remove_padding=True")
        _know_from_micro_batches(module)
    else:
        raise NotImplementedError("plans support pipelines only with megatron-core 0.12.1 and 0.16.0")


def _know_from_verl(module: ModuleType) -> None:
    """Use the shapes that verl passes to Megatron. They are right if all sequences have the same length."""
    original = module._communicate

    @functools.wraps(original)
    def _communicate(*, config: ModelParallelConfig, **messages: object) -> object:
        known = copy.copy(config)
        known.variable_seq_lengths = False
        return original(config=known, **messages)

    vars(module)["_communicate"] = _communicate


@dataclass(slots=True)
class Neighbours:
    """The tensors that this pipeline stage expects from the adjacent stages, in the expected order."""

    forward: deque[int] = field(default_factory=deque)
    """The numbers of rows of the micro batches that this stage has not received yet."""
    backward: deque[Shape] = field(default_factory=deque)
    """The shapes of the tensors that this stage has sent. Their gradients come back in the same order, except in an
    interleaved schedule."""

    def begin(self, micro_batches: Iterable[int]) -> None:
        """From now on, expect micro batches with these numbers of rows. The state of the previous phase is
        discarded."""
        self.forward = deque(micro_batches)
        self.backward.clear()

    def shapes(
        self, sent: Shape | None, from_before: bool, from_behind: bool, hidden: int
    ) -> tuple[Shape | None, Shape | None]:
        """Return the shapes of the two tensors to receive now. The first is a micro batch [rows, 1, hidden], and the
        second is the gradient of a tensor that was sent."""
        if sent is not None:
            self.backward.append(tuple(sent))
        micro_batch = (self.forward.popleft(), 1, hidden) if from_before else None
        return micro_batch, self.backward.popleft() if from_behind else None


def rows(lengths: Iterable[int], tensor: int, context: int) -> int:
    """Return the number of rows of a micro batch on one rank. The sequences are packed, and each sequence is padded to
    a multiple of the number of ranks that share it.

    `tensor` and `context` are parallel sizes. verl turns on sequence parallelism together with tensor parallelism.
    Source: verl/models/mcore/util.py, `preprocess_thd_engine`.
    """
    multiple = tensor * context * 2 if context > 1 else tensor
    padded = sum(-(-length // multiple) * multiple for length in lengths)
    return padded // context // tensor


def _know_from_micro_batches(module: ModuleType) -> None:
    """Compute the shapes from the micro batches, because verl's engines do not pass any shapes to Megatron."""
    neighbours = Neighbours()
    engine: Any = importlib.import_module("verl.workers.engine.megatron.transformer_impl")
    engine.prepare_micro_batches = _counting(engine.prepare_micro_batches, neighbours)

    def communicate_shapes(
        communicator: Any, tensor_send_next: Any, tensor_send_prev: Any, recv_prev: bool, recv_next: bool
    ) -> tuple[Shape | None, Shape | None]:
        del tensor_send_prev  # a gradient, whose receiver knows the shape
        sent = None if tensor_send_next is None else tensor_send_next.shape
        return neighbours.shapes(sent, recv_prev, recv_next, communicator.config.hidden_size)

    module.P2PCommunicator._communicate_shapes = communicate_shapes


def _counting(original: Callable[..., Any], neighbours: Neighbours) -> Callable[..., Any]:
    state: Any = importlib.import_module("megatron.core.parallel_state")

    @functools.wraps(original)
    def prepare_micro_batches(*data: object, **said: object) -> Any:
        if state.get_virtual_pipeline_model_parallel_world_size():
            raise NotImplementedError("plans do not yet support interleaved pipelines with verl v0.8 and later")
        micro_batches, order = original(*data, **said)
        sizes = (state.get_tensor_model_parallel_world_size(), state.get_context_parallel_world_size())
        neighbours.begin(rows(batch["input_ids"].offsets().diff().tolist(), *sizes) for batch in micro_batches)
        return micro_batches, order

    return prepare_micro_batches
