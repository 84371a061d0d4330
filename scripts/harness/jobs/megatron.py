"""RL on verl's Megatron backend with a real MindSpeed: GRPO and PPO with tensor parallelism, GRPO with experts.

MindSpeed is in no registry. VERL_NPU_MINDSPEED names a checkout of it; the pin's documents name f2b0977e.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness import pins
from harness.jobs import grpo, ppo
from harness.jobs.base import Plan

# All jobs have the same list, so that they share an environment. MindSpeed imports scipy for context parallelism.
PACKAGES = ("megatron-core==0.12.1", "einops==0.8.1", "scipy==1.15.3", "mbridge==0.15.1")
SOURCES = ("VERL_NPU_MINDSPEED",)
_ACTOR = "actor_rollout_ref.actor.megatron"
_REFERENCE = "actor_rollout_ref.ref.megatron"
_UNKNOWN_SETTINGS = ("actor_rollout_ref.actor.use_torch_compile=",)


def _arguments(base: Callable[[Plan], list[str]], plan: Plan, settings: dict[str, object]) -> list[str]:
    """Return a job's command line with the Megatron configuration. On Hydra's command line, later settings override
    earlier settings."""
    module, name, *given = base(plan)
    kept = [word for word in given if not word.startswith(_UNKNOWN_SETTINGS)]
    return [module, name, "--config-name=ppo_megatron_trainer", *kept, *(f"{k}={v}" for k, v in settings.items())]


def tensor_parallel(npus: int) -> dict[str, object]:
    """Return the settings that shard the actor and the reference over `npus` NPUs."""
    return {f"{section}.tensor_model_parallel_size": npus for section in (_ACTOR, _REFERENCE)}


def dense(plan: Plan) -> list[str]:
    """Return the module to run and the Hydra overrides for a GRPO run with tensor parallelism over all NPUs."""
    return _arguments(grpo.arguments, plan, tensor_parallel(plan.npus))


def actor_and_critic(plan: Plan) -> list[str]:
    """Return the module to run and the Hydra overrides for a PPO run. The critic has different MindSpeed overrides
    from the actor."""
    settings = tensor_parallel(plan.npus) | {
        "critic.megatron.tensor_model_parallel_size": plan.npus,
        # This is read when the model is created, so two workers in one process can have different values.
        "+critic.megatron.override_transformer_config.hidden_dropout": 0.1,
    }
    return _arguments(ppo.arguments, plan, settings)


def experts(plan: Plan) -> list[str]:
    """Return the module to run and the Hydra overrides for a GRPO run with expert parallelism over all NPUs."""
    settings: dict[str, object] = {
        f"{_ACTOR}.expert_model_parallel_size": plan.npus,
        f"{_REFERENCE}.expert_model_parallel_size": plan.npus,
        # Upstream's own loader and saver do not support experts. The reference takes these two settings from the
        # actor.
        f"{_ACTOR}.use_mbridge": True,
        f"+{_ACTOR}.override_transformer_config.moe_grouped_gemm": True,
    }
    return _arguments(grpo.arguments, plan, settings)


JOB = replace(
    grpo.JOB,
    name="megatron",
    arguments=dense,
    idle=("weight_sync",),
    packages=PACKAGES,
    sources=SOURCES,
    key_value_heads=2,
    engines=(pins.SMALL,),
)
PPO = replace(JOB, name="megatron_ppo", arguments=actor_and_critic)
MOE = replace(JOB, name="megatron_moe", arguments=experts, experts=4)
