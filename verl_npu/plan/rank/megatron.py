"""Megatron's models without their weights: there are none to load, and phantoms would not take them."""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megatron.core import ModelParallelConfig

__all__ = ["know_shapes", "leave_weights_out"]

_LOADERS = ("load_megatron_gptmodel_weights", "load_mcore_dist_weights")
"""What reads a checkpoint into a model that has been made."""
_MODULES = (
    "verl.utils.model",
    "verl.utils.megatron_utils",
    "verl.workers.megatron_workers",
    "verl.workers.engine.megatron.transformer_impl",
)
"""Where it is defined, and who has its name."""


def leave_weights_out() -> None:
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


def know_shapes() -> None:
    """Have stages of a pipeline take the shapes that verl names, in place of those that their neighbours would send.

    They are the same where all sequences have one length. Source: megatron-core 0.12.1, p2p_communication.py.
    """
    module = importlib.import_module("megatron.core.pipeline_parallel.p2p_communication")
    original = getattr(module, "_communicate", None)
    if original is None:
        raise NotImplementedError("pipelines of this megatron-core are not planned yet: 0.12.1 is")

    @functools.wraps(original)
    def _communicate(*, config: ModelParallelConfig, **messages: object) -> object:
        known = copy.copy(config)
        known.variable_seq_lengths = False
        return original(config=known, **messages)

    vars(module)["_communicate"] = _communicate


def _nothing(*_: object, **__: object) -> None:
    """In place of what reads a checkpoint."""
