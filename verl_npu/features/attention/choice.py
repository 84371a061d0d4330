"""The implementation of attention that the user chose, where upstream has hard-coded flash attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...registry.patch import Feature
from ...registry.source.probe import AllOf, Defines, Not, Passes, Probe
from .exchange import with_constant
from .feature import attention

__all__ = ["declare"]

_HARD_CODED = "flash_attention_2"
_OPTION = "attn_implementation"
_LINK = "https://github.com/volcengine/verl/pull/3417"
_WHY = "flash_attention_2 is hard-coded, so a model that needs sdpa or eager attention on an NPU cannot be run"


def declare(feature: Feature) -> None:
    """Declare the patches of this module on `feature`."""
    for target, implementation in (
        ("verl.workers.fsdp_workers:ActorRolloutRefWorker._build_model_optimizer", chosen_for_actor),
        ("verl.workers.fsdp_workers:CriticWorker._build_critic_model_optimizer", chosen_for_critic),
        ("verl.workers.fsdp_workers:RewardModelWorker._build_model", chosen_for_reward),
        ("verl.workers.engine.fsdp.engine_impl:FSDPEngine._build_model_optimizer", chosen_for_engine),
        ("verl.trainer.fsdp_sft_trainer:FSDPSFTTrainer._build_model_optimizer", chosen_for_sft),
    ):
        feature.wrap(
            target,
            why=_WHY,
            how="the same function, with model.override_config.attn_implementation in place of the constant",
            link=_LINK,
            retired_by=_not_hard_coded(target),
        )(implementation)
    feature.wrap(
        "verl.utils.model:load_valuehead_model",
        why=_WHY + "; the critic's own configuration is overruled here",
        how="the same function, with what the model's configuration says in place of the constant",
        link=_LINK,
        retired_by=_not_hard_coded("verl.utils.model:load_valuehead_model"),
    )(chosen_for_values)


def _not_hard_coded(target: str) -> Probe:
    return AllOf(Defines(target), Not(Passes(target, _OPTION, _HARD_CODED)))


def _of(model: Mapping[str, Any]) -> str:
    """The user's choice in the configuration of a model, flash attention where there is none."""
    return str((model.get("override_config") or {}).get(_OPTION) or _HARD_CODED)


def chosen_for_actor(
    original: Callable[..., Any],
    worker: Any,
    model_path: Any,
    fsdp_config: Any,
    optim_config: Any,
    override_model_config: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Build the actor or the reference model."""
    function = with_constant(original, _HARD_CODED, _of({"override_config": override_model_config}))
    return function(worker, model_path, fsdp_config, optim_config, override_model_config, *args, **kwargs)


def chosen_for_critic(original: Callable[..., Any], worker: Any, config: Any) -> Any:
    """Build the critic."""
    return with_constant(original, _HARD_CODED, _of(config.model))(worker, config)


def chosen_for_reward(original: Callable[..., Any], worker: Any, config: Any) -> Any:
    """Build the reward model."""
    return with_constant(original, _HARD_CODED, _of(config.model))(worker, config)


def chosen_for_engine(original: Callable[..., Any], engine: Any, config: Any) -> Any:
    """Build the model of an engine."""
    return with_constant(original, _HARD_CODED, _of(config.model))(engine, config)


def chosen_for_sft(original: Callable[..., Any], trainer: Any) -> Any:
    """Build the model of supervised fine-tuning."""
    return with_constant(original, _HARD_CODED, _of(trainer.config.model))(trainer)


def chosen_for_values(
    original: Callable[..., Any], local_path: Any, torch_dtype: Any, model_config: Any, trust_remote_code: Any
) -> Any:
    """Load a model with a value head."""
    chosen = getattr(model_config, "_attn_implementation", None) or _HARD_CODED
    function = with_constant(original, _HARD_CODED, str(chosen))
    return function(local_path, torch_dtype, model_config, trust_remote_code)


declare(attention)
