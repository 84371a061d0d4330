"""The engine's model: its class is the one that verl's trainers take for the configuration, as a copy of its own."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, GenerationConfig
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from .classes import own_class, own_modules

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

__all__ = ["build", "class_of", "load", "text_settings"]


def class_of(config: PretrainedConfig, path: str = "") -> type[PreTrainedModel]:
    """The model's class for text, or for images and text; at `path` lies its code if transformers has none."""
    remote = getattr(config, "auto_map", None) or {}
    for auto in (AutoModelForImageTextToText, AutoModelForCausalLM):
        mapping = auto._model_mapping
        if type(config) in mapping:
            found = mapping[type(config)]
            public: type = found[0] if isinstance(found, tuple | list) else found
            return cast("type[PreTrainedModel]", own_class(public))
    name = remote.get("AutoModelForImageTextToText") or remote["AutoModelForCausalLM"]
    return cast("type[PreTrainedModel]", own_class(get_class_from_dynamic_module(name, path)))


def build(config: PretrainedConfig, dtype: torch.dtype, path: str = "") -> PreTrainedModel:
    """A model with random weights, on torch's default device, that does not learn."""
    own = class_of(config, path)
    # Which attention the trainer uses is the trainer's business: a copy, so that its config stays as it is.
    model = own._from_config(copy.deepcopy(config), **_options(own, config, dtype))
    own_modules(model)
    # generate() would mix the checkpoint's sampling defaults into ours.
    model.generation_config = GenerationConfig()
    return cast("PreTrainedModel", model.eval().requires_grad_(False))


def load(config: PretrainedConfig, dtype: torch.dtype, path: str) -> PreTrainedModel:
    """The model of a checkpoint."""
    own = class_of(config, path)
    return cast("PreTrainedModel", own.from_pretrained(path, **_options(own, config, dtype)))


def text_settings(config: PretrainedConfig) -> PretrainedConfig:
    """The part of a configuration that describes the language model."""
    return cast("PretrainedConfig", config.get_text_config())


def _options(own: type[PreTrainedModel], config: PretrainedConfig, dtype: torch.dtype) -> dict[str, Any]:
    # transformers called the first of them torch_dtype until 4.56. A few models have no sdpa.
    named = "dtype" if hasattr(config, "dtype") else "torch_dtype"
    return {named: dtype, "attn_implementation": "sdpa" if own._supports_sdpa else "eager"}
