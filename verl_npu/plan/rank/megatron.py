"""Megatron's models without their weights: there are none to load, and phantoms would not take them."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from ..phase import Phase
from .pipeline import know_shapes

if TYPE_CHECKING:
    from omegaconf import DictConfig

__all__ = ["not_shown", "prepare"]

_LOADERS = ("load_megatron_gptmodel_weights", "load_mcore_dist_weights")
"""What reads a checkpoint into a model that has been made."""
_MODULES = (
    "verl.utils.model",
    "verl.utils.megatron_utils",
    "verl.workers.megatron_workers",
    "verl.workers.engine.megatron.transformer_impl",
)
"""Where it is defined, and who has its name."""


def not_shown(config: DictConfig) -> dict[Phase, str]:
    """Return what one rank of Megatron alone cannot do, and why; nothing if the trainer is not Megatron."""
    actor, found = config.actor_rollout_ref.actor, {}
    if actor.strategy == "megatron":
        found[Phase.CHECKPOINT] = "Megatron writes it by code of its own, which would write files of zeros"
        if actor.megatron.pipeline_model_parallel_size > 1:
            found[Phase.WEIGHT_SYNC] = "the stages of a pipeline tell each other what they have, and one is alone here"
    return found


def prepare(config: DictConfig) -> None:
    """Have Megatron's models do without weights and, in a pipeline, without neighbours. After the workers' import."""
    actor = config.actor_rollout_ref.actor
    if actor.strategy != "megatron":
        return
    _leave_weights_out()
    if config.actor_rollout_ref.model.get("trust_remote_code"):
        _speak_as_own_code()
    if actor.megatron.pipeline_model_parallel_size > 1:
        know_shapes(packed=bool(config.actor_rollout_ref.model.get("use_remove_padding", True)))


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
