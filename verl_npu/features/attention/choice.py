"""The implementation of attention that the user chose, at each place where upstream has hard-coded flash attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ...registry.source.probe import AllOf, Defines, Not, Passes
from ..configuration import Section
from .exchange import with_constant
from .feature import FLASH_ATTENTION, attention

__all__ = [
    "use_configured_attention_for_actor",
    "use_configured_attention_for_critic",
    "use_configured_attention_for_fsdp_engine",
    "use_configured_attention_for_reward_model",
    "use_configured_attention_for_sft",
    "use_configured_attention_for_value_head",
]

_OPTION = "attn_implementation"

Implementation = TypeVar("Implementation", bound=Callable[..., object])
Result = TypeVar("Result")


def declare(
    target: str, source: str = "model.override_config.attn_implementation"
) -> Callable[[Implementation], Implementation]:
    """Declare the decorated function for `target`, which then takes the implementation from `source`."""
    return attention.wrap(
        target,
        why="flash_attention_2 is hard-coded here, so a model that needs sdpa or eager attention cannot be trained: "
        "what the user configures has no effect.",
        how=f"A copy of the function is called in which the constant is replaced by {source}.",
        link="https://github.com/volcengine/verl/pull/3417",
        retired_by=AllOf(Defines(target), Not(Passes(target, _OPTION, FLASH_ATTENTION))),
    )


@declare("verl.workers.fsdp_workers:ActorRolloutRefWorker._build_model_optimizer")
def use_configured_attention_for_actor(
    original: Callable[..., Result],
    worker: object,
    model_path: object,
    fsdp_config: object,
    optim_config: object,
    override_model_config: Section | None,
    *args: object,
    **kwargs: object,
) -> Result:
    """Build the actor or the reference model."""
    function = with_constant(original, FLASH_ATTENTION, _chosen(override_model_config))
    return function(worker, model_path, fsdp_config, optim_config, override_model_config, *args, **kwargs)


@declare("verl.workers.fsdp_workers:CriticWorker._build_critic_model_optimizer")
def use_configured_attention_for_critic(original: Callable[..., Result], worker: object, config: Section) -> Result:
    """Build the critic."""
    return _with_chosen(original, config)(worker, config)


@declare("verl.workers.fsdp_workers:RewardModelWorker._build_model")
def use_configured_attention_for_reward_model(
    original: Callable[..., Result], worker: object, config: Section
) -> Result:
    """Build the reward model."""
    return _with_chosen(original, config)(worker, config)


@declare("verl.workers.engine.fsdp.engine_impl:FSDPEngine._build_model_optimizer")
def use_configured_attention_for_fsdp_engine(
    original: Callable[..., Result], engine: object, config: Section
) -> Result:
    """Build the model of an engine."""
    return _with_chosen(original, config)(engine, config)


@declare("verl.trainer.fsdp_sft_trainer:FSDPSFTTrainer._build_model_optimizer")
def use_configured_attention_for_sft(original: Callable[..., Result], trainer: Section) -> Result:
    """Build the model of supervised fine-tuning."""
    return _with_chosen(original, trainer.config)(trainer)


@declare("verl.utils.model:load_valuehead_model", "the model configuration's own attn_implementation")
def use_configured_attention_for_value_head(
    original: Callable[..., Result],
    local_path: object,
    torch_dtype: object,
    model_config: object,
    trust_remote_code: object,
) -> Result:
    """Load a model with a value head."""
    chosen = getattr(model_config, "_attn_implementation", None) or FLASH_ATTENTION
    function = with_constant(original, FLASH_ATTENTION, str(chosen))
    return function(local_path, torch_dtype, model_config, trust_remote_code)


def _with_chosen(original: Callable[..., Result], config: Section) -> Callable[..., Result]:
    return with_constant(original, FLASH_ATTENTION, _chosen(config.model.get("override_config")))


def _chosen(override: Section | None) -> str:
    """Return the user's choice in a model's `override_config`, or flash attention if there is none."""
    return str((override.get(_OPTION) if override else None) or FLASH_ATTENTION)
