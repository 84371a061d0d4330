"""Makes transformers load models without weights when tensors are phantoms."""

from __future__ import annotations

import functools
import importlib
from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

# Options that say how to build a model. All other options of from_pretrained are about files, which are not read.
_BUILD_OPTIONS = ("attn_implementation", "dtype", "torch_dtype")


def leave_weights_out(module: ModuleType) -> None:
    """Make `transformers.modeling_utils` leave large weights uninitialized, so that they take up no memory and no
    weight files are needed.

    The host does not allocate memory that is never written to. Small weights are initialized, because a virtual NPU
    stores the values of small tensors. The model's checkpoint needs only its config.json and its tokenizer.
    """
    base = module.PreTrainedModel
    from_config = base._from_config.__func__

    @functools.wraps(from_config)
    def _from_config(cls: type[PreTrainedModel], config: PretrainedConfig, **options: object) -> PreTrainedModel:
        with _without_initialising(module):
            model = cast("PreTrainedModel", from_config(cls, config, **options))
        _initialise_small(model)
        model.tie_weights()
        return model

    @functools.wraps(base.from_pretrained.__func__)
    def from_pretrained(
        cls: type[PreTrainedModel],
        path: str,
        *_: object,
        config: PretrainedConfig | None = None,
        output_loading_info: bool = False,
        **options: object,
    ) -> object:
        if config is None:
            config = cls.config_class.from_pretrained(path)
        chosen = {name: value for name, value in options.items() if name in _BUILD_OPTIONS and value is not None}
        for name in ("dtype", "torch_dtype"):
            if chosen.get(name) == "auto":
                del chosen[name]
        model = cast("PreTrainedModel", cls._from_config(config, **chosen)).eval()
        if options.get("device_map") is not None:
            model = model.to("npu")
        if model.can_generate():
            _take_generation_config(model, path)
        nothing: dict[str, list[str]] = {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": []}
        return (model, nothing) if output_loading_info else model

    base._from_config = classmethod(cast("Any", _from_config))
    base.from_pretrained = classmethod(cast("Any", from_pretrained))


def _take_generation_config(model: PreTrainedModel, path: str) -> None:
    from transformers import GenerationConfig

    try:
        model.generation_config = GenerationConfig.from_pretrained(path)
    except OSError:
        # Without this file, transformers keeps the generation settings of the model's configuration.
        return


def _without_initialising(module: ModuleType) -> AbstractContextManager[None]:
    found = getattr(module, "no_init_weights", None)
    if found is None:
        found = importlib.import_module("transformers.initialization").no_init_weights
    return cast("AbstractContextManager[None]", found())


def _initialise_small(model: PreTrainedModel) -> None:
    import torch
    from virtual_ascend import ledger

    least = ledger.phantom_bytes()
    with torch.no_grad():
        for part in model.modules():
            own = list(part.parameters(recurse=False))
            small = [weight for weight in own if weight.nbytes < least and not weight.is_meta]
            if small and len(small) == len(own):
                model._init_weights(part)
                continue
            for weight in small:
                weight.zero_()
