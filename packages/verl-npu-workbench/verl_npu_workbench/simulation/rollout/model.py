"""The engine's model: a private copy of the class that verl's trainers use for the same configuration.

A patch by verl or by verl-npu changes a transformers class for the whole process. The trainer needs such patches, but
an engine in the same process must not have them. For example, with `use_fused_kernels`, a patched forward returns no
logits. The engine therefore uses private copies of a model's classes.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, GenerationConfig
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from verl_npu.errors import RolloutError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


def _class_of(config: PretrainedConfig, path: str = "") -> type[PreTrainedModel]:
    """Return the model's class, for text only or for images and text. `path` is the folder that contains the class if
    transformers does not have it."""
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
    """Return a model with random weights on torch's default device, without gradients."""
    own = _class_of(config, path)
    # Copy the configuration, because the trainer's attention setting in it must not change.
    model = own._from_config(copy.deepcopy(config), **_options(own, config, dtype))
    own_modules(model)
    # Otherwise, generate() mixes the checkpoint's sampling defaults into the requested parameters.
    model.generation_config = GenerationConfig()
    return cast("PreTrainedModel", model.eval().requires_grad_(False))


def load(config: PretrainedConfig, dtype: torch.dtype, path: str) -> PreTrainedModel:
    """Return the model of a checkpoint."""
    own = _class_of(config, path)
    return cast("PreTrainedModel", own.from_pretrained(path, **_options(own, config, dtype)))


def text_settings(config: PretrainedConfig) -> PretrainedConfig:
    """Return the part of a configuration that describes the language model."""
    return cast("PretrainedConfig", config.get_text_config())


def _options(own: type[PreTrainedModel], config: PretrainedConfig, dtype: torch.dtype) -> dict[str, Any]:
    # Until 4.56, transformers named the dtype torch_dtype. A few models do not support sdpa.
    named = "dtype" if hasattr(config, "dtype") else "torch_dtype"
    return {named: dtype, "attn_implementation": "sdpa" if own._supports_sdpa else "eager"}


# Copies of classes.

_PREFIX = "_verl_npu_rollout_"


def own_class(public: type) -> type:
    """Return a private copy of a class. The copy is created by importing the file that defines the class a second
    time.

    Raises:
        RolloutError: the class is not defined in the file of its module.
    """
    if _is_own(public.__module__):
        return public
    found = getattr(_own_module(public.__module__), public.__name__, None)
    if not isinstance(found, type):
        raise RolloutError(
            subject=f"the class {public.__name__} for the virtual rollout engine",
            expected=f"a class that is defined in the source code of {public.__module__}",
            found="a class that was created at run time",
            fix="use a model whose class is defined in a module, or let vLLM generate on the CPU",
        )
    return found


def own_modules(model: torch.nn.Module) -> None:
    """Replace the class of each submodule of a model with a private copy, if the class is defined by transformers or
    by a model's own files.

    These files can be another model's, because a model can import classes or create submodules through AutoModel.
    """
    for part in model.modules():
        module = type(part).__module__
        if _defines_models(module) and not _is_own(module):
            part.__class__ = own_class(type(part))


def _own_module(name: str) -> ModuleType:
    parent, _, last = name.rpartition(".")
    # In the same package, so that relative imports work.
    own = f"{parent}.{_PREFIX}{last}"
    if own in sys.modules:
        return sys.modules[own]
    public = importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(own, public.__file__)
    if spec is None or spec.loader is None:
        raise ImportError(f"{name} has no source file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[own] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[own]
        raise
    return module


def _is_own(module: str) -> bool:
    return module.rpartition(".")[2].startswith(_PREFIX)


def _defines_models(module: str) -> bool:
    last = module.rpartition(".")[2]
    return last.startswith("modeling_") and module.startswith(("transformers.models.", "transformers_modules."))
