"""Upstream's MindSpeed engines: each gives MindSpeed the user's overrides before the process groups are made."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from ....registry.source.probe import Defines, Mentions, Never
from ..feature import megatron
from ..overrides.request import effective
from ..settlement import settle, speaking_for
from .workers import REQUEST, request_of, settle_again

if TYPE_CHECKING:
    from ..interfaces import Engine, Section

__all__: list[str] = []

_MODULE = "verl.workers.engine.mindspeed.transformer_impl"
_LM, _VALUE = f"{_MODULE}:MindspeedEngineWithLMHead", f"{_MODULE}:MindspeedEngineWithValueHead"
_PERMUTATION = "megatron.core.transformer.moe.moe_utils"
_EARLY = Mentions(_MODULE, "_mindspeed_repatch")
_BUILD = "verl.workers.engine.megatron.transformer_impl:MegatronEngine._build_tf_config"
_UNCHECKED = (
    "Upstream passes the overrides to MindSpeed without the megatron section that they stand in, so a contradiction "
    "between the two, such as two values of context_parallel_size, is not noticed."
)
_CHECKED = "The engine's overrides are checked together with its section when upstream calls repatch."
_LINK = "https://github.com/volcengine/verl/pull/5697"


@megatron.wrap(
    f"{_LM}.__init__",
    why="Upstream calls repatch after the process groups are made, too late for MindSpeed's patches of the groups, "
    "and drops the user's override_transformer_config or writes to it.",
    how="The engine's own overrides are put in force before upstream's constructor runs; its later call of repatch "
    "then changes nothing.",
    link=_LINK,
    retired_by=_EARLY,
    requires=Mentions(f"{_LM}.__init__", "repatch"),
)
def give_mindspeed_the_engines_overrides(
    original: Callable[..., None],
    engine: Engine,
    model_config: object,
    engine_config: Section,
    optimizer_config: object,
    checkpoint_config: object,
) -> None:
    """Make the engine with its overrides in force."""
    request = request_of("the language model's engine", engine_config)
    settle(request)
    setattr(engine, REQUEST, request)
    with speaking_for(request):
        original(engine, model_config, engine_config, optimizer_config, checkpoint_config)


@megatron.wrap(
    f"{_LM}._init_device_mesh",
    why=_UNCHECKED,
    how=_CHECKED,
    link=_LINK,
    retired_by=Never("upstream checks nothing"),
    requires=Defines(f"{_LM}._init_device_mesh"),
)
def check_the_language_model_engines_overrides(original: Callable[..., None], engine: Engine) -> None:
    """Make the process groups with the engine's overrides in force."""
    _make_groups(original, engine, "the language model's engine")


@megatron.wrap(
    f"{_VALUE}._init_device_mesh",
    why=_UNCHECKED,
    how=_CHECKED,
    link=_LINK,
    retired_by=Never("upstream checks nothing"),
    requires=Defines(f"{_VALUE}._init_device_mesh"),
)
def check_the_value_model_engines_overrides(original: Callable[..., None], engine: Engine) -> None:
    """Make the process groups with the engine's overrides in force."""
    _make_groups(original, engine, "the value model's engine")


@megatron.wrap(
    _BUILD,
    why="MindSpeed merges the overrides of the last engine in the process into each later configuration of a model, "
    "so a model may be built with another model's settings, without an error. Into Megatron-Bridge's, whose classes "
    "are older than the overrides, it merges none: without use_flash_attn=True in the script the first log-"
    "probabilities end with RuntimeError: Please set micro_batch_size or set use_flash_attn=True in config. And "
    "Megatron-Bridge asks for TransformerEngine's fused permutation of experts' tokens, for which MindSpeed has a "
    "placeholder unless the script has moe_permute_fusion=True: Module.__init__() got an unexpected keyword argument.",
    how="The engine's own overrides are put in force again while its model's configuration is made, and what is "
    "filled in beside them is written to Megatron-Bridge's as well. A permutation that is only a placeholder is not "
    "asked for: Megatron's own moves the tokens.",
    link="none: see transformer_config_init_wrapper in MindSpeed's core/megatron_basic/arguments_basic.py",
    retired_by=Never("MindSpeed's arguments belong to the process"),
    requires=Defines(_BUILD),
)
def configure_each_engine_with_its_own_overrides(
    original: Callable[..., object], engine: Engine, *args: object, **kwargs: object
) -> object:
    """Make the model's configuration with the engine's own overrides in force."""
    settle_again(engine)
    result = original(engine, *args, **kwargs)
    provider, request = getattr(engine, "provider", None), getattr(engine, REQUEST, None)
    if provider is not None and request is not None:
        for key, value in effective(request).items():
            if key not in request.overrides:
                setattr(provider, key, value)
        if getattr(provider, "moe_permute_fusion", False) and _fused_permutation_is_a_placeholder():
            provider.moe_permute_fusion = False
    return result


def _fused_permutation_is_a_placeholder() -> bool:
    """Return whether Megatron's own `permute` would call what MindSpeed has put where TransformerEngine's belongs."""
    moe = sys.modules.get(_PERMUTATION)
    if moe is None:
        return False
    # MindSpeed makes torch.nn.Module of what only has to be there; its fused kernels replace `permute` itself.
    placeholder = getattr(moe, "fused_permute", None)
    return isinstance(placeholder, type) and moe.permute.__module__ == _PERMUTATION


def _make_groups(original: Callable[..., None], engine: Engine, name: str) -> None:
    request = request_of(name, engine.engine_config)
    setattr(engine, REQUEST, request)
    with speaking_for(request):
        original(engine)
