"""Upstream's engine path: the user's overrides, before the process groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...registry.source.probe import Defines, Mentions, Never
from .feature import megatron
from .settlement import asked, settle
from .workers import request_of

__all__: list[str] = []

_MODULE = "verl.workers.engine.mindspeed.transformer_impl"
_LM, _VALUE = f"{_MODULE}:MindspeedEngineWithLMHead", f"{_MODULE}:MindspeedEngineWithValueHead"
_EARLY = Mentions(_MODULE, "_mindspeed_repatch")
_BUILD = "verl.workers.engine.megatron.transformer_impl:MegatronEngine._build_tf_config"
_UNCHECKED = "the overrides stand without their section, so contradictions between the two pass"
_CHECKED = "the request names its section, and repatch is checked against both"
_REQUEST = "_verl_npu_request"


@megatron.wrap(
    f"{_LM}.__init__",
    why="upstream calls repatch after the process groups are made, and drops the user's overrides or writes to them",
    how="the engine's own overrides are in force before upstream's constructor runs, and its late call says the same",
    link="https://github.com/volcengine/verl/pull/5697",
    retired_by=_EARLY,
    requires=Mentions(f"{_LM}.__init__", "repatch"),
)
def engine_in_time(
    original: Callable[..., Any],
    engine: Any,
    model_config: Any,
    engine_config: Any,
    optimizer_config: Any,
    checkpoint_config: Any,
) -> None:
    """Make the engine with its overrides in force."""
    request = request_of("the language model's engine", engine_config)
    settle(request)
    setattr(engine, _REQUEST, request)
    with asked(request):
        original(engine, model_config, engine_config, optimizer_config, checkpoint_config)


@megatron.wrap(
    f"{_LM}._init_device_mesh",
    why=_UNCHECKED,
    how=_CHECKED,
    link="https://github.com/volcengine/verl/pull/5697",
    retired_by=Never("upstream checks nothing"),
    requires=Defines(f"{_LM}._init_device_mesh"),
)
def language_model_groups(original: Callable[..., Any], engine: Any) -> None:
    """Make the groups with the engine's overrides in force."""
    _groups(original, engine, "the language model's engine")


@megatron.wrap(
    f"{_VALUE}._init_device_mesh",
    why=_UNCHECKED,
    how=_CHECKED,
    link="https://github.com/volcengine/verl/pull/5697",
    retired_by=Never("upstream checks nothing"),
    requires=Defines(f"{_VALUE}._init_device_mesh"),
)
def value_model_groups(original: Callable[..., Any], engine: Any) -> None:
    """Make the groups with the engine's overrides in force."""
    _groups(original, engine, "the value model's engine")


@megatron.wrap(
    _BUILD,
    why="MindSpeed merges what the last engine of the process left into every later configuration of a model",
    how="the engine's own overrides are in force again while its configuration is made",
    link="none: see transformer_config_init_wrapper in MindSpeed's core/megatron_basic/arguments_basic.py",
    retired_by=Never("MindSpeed's arguments belong to the process"),
    requires=Defines(_BUILD),
)
def engine_configured_alone(original: Callable[..., Any], engine: Any, *args: Any, **kwargs: Any) -> Any:
    """Make the model's configuration with the engine's own overrides in force."""
    request = getattr(engine, _REQUEST, None)
    if request is not None:
        settle(request)
    return original(engine, *args, **kwargs)


def _groups(original: Callable[..., Any], engine: Any, name: str) -> None:
    request = request_of(name, engine.engine_config)
    setattr(engine, _REQUEST, request)
    with asked(request):
        original(engine)
