"""Patches that make upstream's Megatron workers (up to v0.7) and engines pass their own overrides to MindSpeed.

Each worker or engine must pass its overrides before it creates its process groups.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

from ...errors import JobSettingError
from ...registry.apply.replacement import clone
from ...registry.source.probe import Calls, Defines, Never
from . import over_megatron
from .repatch import on_behalf_of, plain_values, refuse_to_go_without_mindspeed, repatch
from .request import OVERRIDE, SECTION_KEYS, Request, effective

if TYPE_CHECKING:
    from ..configuration import Section

REQUEST = "_verl_npu_request"
"""The attribute of a worker or an engine that stores its request."""
_WORKERS = "verl.workers.megatron_workers"
_LINK_WORKERS = "none: compare the calls of repatch in verl/workers/megatron_workers.py"


_REPATCH = "mindspeed.megatron_adaptor:repatch(args)"
_CONFIG = "verl/trainer/config/ppo_megatron_trainer.yaml"


def _section_uses(place: str) -> tuple[str, ...]:
    """Return the keys that we read from a worker's section in addition to its overrides, prefixed with `place`."""
    return tuple(f"{place}.{key}" for key in SECTION_KEYS)


def request_of(worker: str, section: Section) -> Request:
    """Return a worker's request to MindSpeed. `section` is the `megatron` section of the worker's configuration."""
    overrides = plain_values(section.get("override_transformer_config", {}))
    return Request(worker, overrides, {key: section.get(key, None) for key in SECTION_KEYS})


def repatch_again(owner: object) -> None:
    """Reapply the overrides that a worker or an engine has requested. Do nothing if the owner has requested none."""
    request = getattr(owner, REQUEST, None)
    if request is not None:
        repatch(request)


@over_megatron.wrap(
    f"{_WORKERS}:ActorRolloutRefWorker.__init__",
    uses=(
        _REPATCH,
        f"{_CONFIG}: actor_rollout_ref.actor.megatron.override_transformer_config",
        f"{_CONFIG}: actor_rollout_ref.ref.megatron.override_transformer_config",
    ),
    may_use=_section_uses(f"{_CONFIG}: actor_rollout_ref.actor.megatron"),
    why="Upstream gives MindSpeed the actor's overrides also for a reference worker. The reference model silently "
    "runs with the actor's settings instead of its own.",
    how="A reference worker and an actor each pass their own overrides. Upstream's call of repatch then passes the "
    "same overrides.",
    link=_LINK_WORKERS,
    retired_by=Never("v0.8 removed these workers without fixing this"),
    requires=Calls(f"{_WORKERS}:ActorRolloutRefWorker.__init__", "repatch"),
)
def give_mindspeed_the_actors_or_refs_overrides(
    original: Callable[..., None], worker: object, config: Section, role: str, *args: object, **kwargs: object
) -> None:
    """Construct the worker with the overrides of the worker's role applied."""
    # Upstream makes the process groups with the actor's sizes, also for a reference worker.
    request = request_of(role, config.actor.megatron)
    if role == "ref":
        request = replace(request, overrides=request_of(role, config.ref.megatron).overrides)
    if role == "actor_rollout_ref":
        _refuse_other_reference(request, config)
    _construct(original, worker, request, config, role, *args, **kwargs)


def _declare_worker(owner: str, worker: str, name: str) -> None:
    """Declare the patch `name`, which passes a worker's overrides to MindSpeed, because upstream does not."""
    target = f"{_WORKERS}:{owner}.__init__"

    def give_mindspeed_its_own_overrides(original: Callable[..., None], made: object, config: Section) -> None:
        _construct(original, made, request_of(worker, config.megatron), config)

    over_megatron.wrap(
        target,
        uses=(_REPATCH, f"{_CONFIG}: {worker}.megatron.override_transformer_config"),
        may_use=_section_uses(f"{_CONFIG}: {worker}.megatron"),
        why=f"Upstream calls repatch only for the actor. The {worker.replace('_', ' ')}'s override_transformer_config "
        "silently has no effect on MindSpeed.",
        how="MindSpeed gets the worker's own overrides before the worker makes its process groups.",
        link=_LINK_WORKERS,
        retired_by=Calls(target, "repatch"),
        requires=Defines(target),
    )(clone(cast(FunctionType, give_mindspeed_its_own_overrides), name=name))


_declare_worker("CriticWorker", "critic", "give_mindspeed_the_critics_overrides")
_declare_worker("RewardModelWorker", "reward_model", "give_mindspeed_the_reward_models_overrides")


@over_megatron.wrap(
    f"{_WORKERS}:MegatronWorker._init_hf_config_and_tf_config",
    uses=(_REPATCH,),
    why="MindSpeed merges the overrides of the last worker in the process into each later model configuration, so a "
    "model may silently be built with another model's settings.",
    how="We apply the worker's own overrides again before its model's configuration is made.",
    link=_LINK_WORKERS,
    retired_by=Never("v0.8 removed these workers without fixing this"),
    requires=Defines(f"{_WORKERS}:MegatronWorker._init_hf_config_and_tf_config"),
)
def configure_each_worker_with_its_own_overrides(
    original: Callable[..., object], worker: object, *args: object, **kwargs: object
) -> object:
    """Apply the worker's own overrides, and then create the model's configuration."""
    repatch_again(worker)
    return original(worker, *args, **kwargs)


def _construct(
    original: Callable[..., None], worker: object, request: Request, *args: object, **kwargs: object
) -> None:
    repatch(request)
    setattr(worker, REQUEST, request)
    with on_behalf_of(request):
        original(worker, *args, **kwargs)


def _refuse_other_reference(request: Request, config: Section) -> None:
    """Raise JobSettingError if the overrides of the reference model differ from the actor's. The worker uses the
    actor's overrides for both models."""
    section = config.get("ref", {}).get("megatron", None)
    theirs = request_of("ref", section).overrides if section is not None else request.overrides
    if theirs == request.overrides:
        return
    differ = sorted(k for k in {*theirs, *request.overrides} if theirs.get(k) != request.overrides.get(k))
    raise JobSettingError(
        subject="actor_rollout_ref: ref.megatron.override_transformer_config",
        expected="the same overrides as for the actor, because one worker builds both models",
        found=", ".join(f"{key}={theirs.get(key)} (the actor has {request.overrides.get(key)})" for key in differ),
        fix="remove the reference's overrides, or run the reference as a separate worker",
        override=OVERRIDE,
    )


_ENGINES = "verl.workers.engine.mindspeed.transformer_impl"
_LM, _VALUE = f"{_ENGINES}:MindspeedEngineWithLMHead", f"{_ENGINES}:MindspeedEngineWithValueHead"
_PERMUTATION = "megatron.core.transformer.moe.moe_utils"
_EARLY = Calls(_ENGINES, "_mindspeed_repatch")
_BUILD = "verl.workers.engine.megatron.transformer_impl:MegatronEngine._build_tf_config"
_ENGINE_CONFIG = "verl.workers.config.engine:McoreEngineConfig"
_LANGUAGE_MODEL = "the language model's engine"
_LINK_ENGINES = "https://github.com/volcengine/verl/pull/5697"


@over_megatron.wrap(
    f"{_LM}.__init__",
    uses=(_REPATCH, f"{_ENGINE_CONFIG}.override_transformer_config"),
    may_use=_section_uses(_ENGINE_CONFIG),
    why="Upstream calls repatch after making the process groups, which is too late for MindSpeed's patches of the "
    "groups. It also drops or changes the user's override_transformer_config.",
    how="We apply the engine's own overrides before upstream's constructor runs. Its later call of repatch then "
    "changes nothing.",
    link=_LINK_ENGINES,
    retired_by=_EARLY,
    requires=Calls(f"{_LM}.__init__", "repatch"),
)
def give_mindspeed_the_engines_overrides(
    original: Callable[..., None],
    engine: Any,
    model_config: object,
    engine_config: Section,
    optimizer_config: object,
    checkpoint_config: object,
) -> None:
    """Construct the engine with its MindSpeed overrides applied."""
    request = request_of(_LANGUAGE_MODEL, engine_config)
    repatch(request)
    setattr(engine, REQUEST, request)
    with on_behalf_of(request):
        original(engine, model_config, engine_config, optimizer_config, checkpoint_config)


def _declare_groups(owner: str, engine: str, name: str) -> None:
    """Declare the patch `name`. It applies an engine's overrides while the engine makes its process groups."""

    def make_groups(original: Callable[..., None], made: Any) -> None:
        request = request_of(engine, made.engine_config)
        refuse_to_go_without_mindspeed(engine)
        setattr(made, REQUEST, request)
        with on_behalf_of(request):
            original(made)

    over_megatron.wrap(
        f"{owner}._init_device_mesh",
        uses=(f"{owner}.engine_config", f"{_ENGINE_CONFIG}.override_transformer_config"),
        may_use=_section_uses(_ENGINE_CONFIG),
        why="Upstream passes the overrides to MindSpeed without their megatron section. Nobody notices a "
        "contradiction between the two, such as two values of context_parallel_size.",
        how="When upstream calls repatch, we check the engine's overrides together with its section.",
        link=_LINK_ENGINES,
        retired_by=Never("upstream checks nothing"),
        requires=Defines(f"{owner}._init_device_mesh"),
    )(clone(cast(FunctionType, make_groups), name=name))


_declare_groups(_LM, _LANGUAGE_MODEL, "check_the_language_model_engines_overrides")
_declare_groups(_VALUE, "the value model's engine", "check_the_value_model_engines_overrides")


@over_megatron.wrap(
    _BUILD,
    uses=(_REPATCH,),
    may_use=(f"{_BUILD.rpartition('.')[0]}.provider",),
    why="MindSpeed merges the overrides of the last engine in the process into each later model configuration, so a "
    "model may silently be built with another model's settings. It merges none into Megatron-Bridge's configuration, "
    "whose classes exist before the overrides. Without use_flash_attn=True in the script, the first log-probabilities "
    "fail with `RuntimeError: Please set micro_batch_size or set use_flash_attn=True in config`. Megatron-Bridge also "
    "requests TransformerEngine's fused token permutation. Unless the script has moe_permute_fusion=True, MindSpeed "
    "has only a placeholder for it: `Module.__init__() got an unexpected keyword argument`.",
    how="We apply the engine's own overrides again before its model's configuration is made, and also write the "
    "settings that verl-npu adds to Megatron-Bridge's configuration. If the fused permutation is only a placeholder, "
    "we switch it off, and Megatron's own code moves the tokens.",
    link="none: see transformer_config_init_wrapper in MindSpeed's core/megatron_basic/arguments_basic.py",
    retired_by=Never("MindSpeed's arguments belong to the process"),
    requires=Defines(_BUILD),
)
def configure_each_engine_with_its_own_overrides(
    original: Callable[..., object], engine: Any, *args: object, **kwargs: object
) -> object:
    """Create the model's configuration while the engine's own overrides are applied."""
    repatch_again(engine)
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
    """Return whether Megatron's `permute` would call the placeholder that MindSpeed makes for TransformerEngine's
    function."""
    moe = sys.modules.get(_PERMUTATION)
    if moe is None:
        return False
    # MindSpeed's placeholders are torch.nn.Module. Its fused kernels replace `permute` itself.
    placeholder = getattr(moe, "fused_permute", None)
    return isinstance(placeholder, type) and moe.permute.__module__ == _PERMUTATION
