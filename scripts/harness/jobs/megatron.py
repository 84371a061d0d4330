"""GRPO on verl's Megatron backend with a real MindSpeed: tensor parallelism over two NPUs.

MindSpeed is in no registry: VERL_NPU_MINDSPEED names a checkout of it, f2b0977e being what the pin's documents name.
"""

from __future__ import annotations

from harness.jobs import grpo
from harness.jobs.base import Job, Plan

_UNKNOWN_HERE = ("actor_rollout_ref.actor.use_torch_compile=", "actor_rollout_ref.actor.checkpoint.save_contents=")


def arguments(plan: Plan) -> list[str]:
    """Return GRPO's command with the other configuration; what comes later on Hydra's command line wins."""
    settings: dict[str, object] = {
        "actor_rollout_ref.actor.optim.lr": 5e-3 if plan.generated else 1e-6,
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size": plan.npus,
        "actor_rollout_ref.ref.megatron.tensor_model_parallel_size": plan.npus,
        "actor_rollout_ref.actor.checkpoint.save_contents": "[hf_model]",
    }
    module, name, *given = grpo.arguments(plan)
    kept = [word for word in given if not word.startswith(_UNKNOWN_HERE)]
    return [module, name, "--config-name=ppo_megatron_trainer", *kept, *(f"{k}={v}" for k, v in settings.items())]


JOB = Job(
    name="megatron",
    pins=("v0.6.1",),
    arguments=arguments,
    metric="critic/score/mean",
    trained_model=grpo.trained_model,
    packages=("megatron-core==0.12.1", "einops==0.8.1"),
    sources=("VERL_NPU_MINDSPEED",),
    key_value_heads=2,
)
