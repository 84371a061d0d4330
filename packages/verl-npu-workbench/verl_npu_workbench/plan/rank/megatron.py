"""Megatron on one rank: models without their weights, which phantoms would not take, and stages without neighbours."""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..job import Phase

if TYPE_CHECKING:
    from megatron.core import ModelParallelConfig
    from omegaconf import DictConfig

_LOADERS = ("load_megatron_gptmodel_weights", "load_mcore_dist_weights")
"""What reads a checkpoint into a model that has been made."""
_MODULES = (
    "verl.utils.model",
    "verl.utils.megatron_utils",
    "verl.workers.megatron_workers",
    "verl.workers.engine.megatron.transformer_impl",
)
"""Where it is defined, and who has its name."""


def not_shown(roles: DictConfig) -> dict[Phase, str]:
    """Return what one rank of Megatron alone cannot do, and why; nothing if the trainer is not Megatron."""
    actor, found = roles.actor, {}
    if actor.strategy == "megatron":
        found[Phase.CHECKPOINT] = "Megatron writes it by code of its own, which would write files of zeros"
        if actor.megatron.pipeline_model_parallel_size > 1:
            found[Phase.WEIGHT_SYNC] = "the stages of a pipeline tell each other what they have, and one is alone here"
    return found


def prepare(roles: DictConfig) -> None:
    """Have Megatron's models do without weights and, in a pipeline, without neighbours. After the workers' import."""
    actor = roles.actor
    if actor.strategy != "megatron":
        return
    _leave_weights_out()
    if roles.model.get("trust_remote_code"):
        _speak_as_own_code()
    if actor.megatron.pipeline_model_parallel_size > 1:
        know_shapes(packed=bool(roles.model.get("use_remove_padding", True)))


def _leave_weights_out() -> None:
    """Have verl and its bridges load nothing into Megatron's models. After verl's workers are imported.

    By then MindSpeed has taken the place of what the bridges import.
    """
    for module in filter(None, map(sys.modules.get, _MODULES)):
        for name in _LOADERS:
            if hasattr(module, name):
                setattr(module, name, _nothing)
    if importlib.util.find_spec("mbridge") is not None:
        bridge = importlib.import_module("mbridge.core.bridge").Bridge
        bridge.load_weights = _nothing


def _speak_as_own_code() -> None:
    """Have a DeepSeek's configuration tell its rope_theta, as the code in the models' own repositories does.

    mbridge 0.15.1 asks for it, and transformers' class has it no more from v5 on. A plan's model has no such code.
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
    """In place of what reads a checkpoint."""


Shape = Sequence[int]


def know_shapes(packed: bool) -> None:
    """Have the stages of a pipeline receive tensors of the shapes that their neighbours would send. Once per process.

    `packed` tells whether sequences are without padding between them: the model's use_remove_padding.
    Source: megatron-core 0.12.1 and 0.16.0, megatron/core/pipeline_parallel/p2p_communication.py.

    Raises:
        NotImplementedError: this megatron-core has neither of the two ways to ask for a shape, or they are not known.
    """
    module = importlib.import_module("megatron.core.pipeline_parallel.p2p_communication")
    if hasattr(module, "_communicate"):
        _know_from_verl(module)
    elif hasattr(getattr(module, "P2PCommunicator", None), "_communicate_shapes"):
        if not packed:
            raise NotImplementedError("pipelines of padded sequences are not planned yet: use_remove_padding=True is")
        _know_from_micro_batches(module)
    else:
        raise NotImplementedError("pipelines of this megatron-core are not planned yet: 0.12.1 and 0.16.0 are")


def _know_from_verl(module: ModuleType) -> None:
    """Take the shapes that verl names to Megatron: right where all sequences have one length."""
    original = module._communicate

    @functools.wraps(original)
    def _communicate(*, config: ModelParallelConfig, **messages: object) -> object:
        known = copy.copy(config)
        known.variable_seq_lengths = False
        return original(config=known, **messages)

    vars(module)["_communicate"] = _communicate


@dataclass(slots=True)
class Neighbours:
    """What the neighbours of a stage have to send, the next first."""

    forward: deque[int] = field(default_factory=deque)
    """Rows of the micro batches that this stage has not received."""
    backward: deque[Shape] = field(default_factory=deque)
    """Shapes of what it has sent: their gradients come back in the same order, but in an interleaved schedule."""

    def begin(self, micro_batches: Iterable[int]) -> None:
        """Expect these rows, and nothing of the phase before."""
        self.forward = deque(micro_batches)
        self.backward.clear()

    def shapes(
        self, sent: Shape | None, from_before: bool, from_behind: bool, hidden: int
    ) -> tuple[Shape | None, Shape | None]:
        """Return the shapes of what is received now: a micro batch [rows, 1, hidden], and the gradient of one sent."""
        if sent is not None:
            self.backward.append(tuple(sent))
        micro_batch = (self.forward.popleft(), 1, hidden) if from_before else None
        return micro_batch, self.backward.popleft() if from_behind else None


def rows(lengths: Iterable[int], tensor: int, context: int) -> int:
    """Return a micro batch's rows on one rank: its sequences are packed, each padded to what the ranks divide.

    `tensor` and `context` are parallel sizes; verl switches sequence parallelism on wherever tensors are divided.
    Source: verl/models/mcore/util.py, `preprocess_thd_engine`.
    """
    multiple = tensor * context * 2 if context > 1 else tensor
    padded = sum(-(-length // multiple) * multiple for length in lengths)
    return padded // context // tensor


def _know_from_micro_batches(module: ModuleType) -> None:
    """Reckon the shapes from the micro batches: verl's engines name none to Megatron."""
    neighbours = Neighbours()
    engine: Any = importlib.import_module("verl.workers.engine.megatron.transformer_impl")
    engine.prepare_micro_batches = _counting(engine.prepare_micro_batches, neighbours)

    def communicate_shapes(
        communicator: Any, tensor_send_next: Any, tensor_send_prev: Any, recv_prev: bool, recv_next: bool
    ) -> tuple[Shape | None, Shape | None]:
        del tensor_send_prev  # a gradient: its shape is known to who gets it
        sent = None if tensor_send_next is None else tensor_send_next.shape
        return neighbours.shapes(sent, recv_prev, recv_next, communicator.config.hidden_size)

    module.P2PCommunicator._communicate_shapes = communicate_shapes


def _counting(original: Callable[..., Any], neighbours: Neighbours) -> Callable[..., Any]:
    state: Any = importlib.import_module("megatron.core.parallel_state")

    @functools.wraps(original)
    def prepare_micro_batches(*data: object, **said: object) -> Any:
        if state.get_virtual_pipeline_model_parallel_world_size():
            raise NotImplementedError("interleaved pipelines of verl from v0.8 on are not planned yet")
        micro_batches, order = original(*data, **said)
        sizes = (state.get_tensor_model_parallel_world_size(), state.get_context_parallel_world_size())
        neighbours.begin(rows(batch["input_ids"].offsets().diff().tolist(), *sizes) for batch in micro_batches)
        return micro_batches, order

    return prepare_micro_batches
