"""PPO through verl's main_ppo: like GRPO, but a critic in the same workers estimates the advantage."""

from __future__ import annotations

from dataclasses import replace

from harness import pins
from harness.jobs import grpo
from harness.jobs.base import Plan


def arguments(plan: Plan) -> list[str]:
    """Return the GRPO command line, with the settings of a critic appended. On Hydra's command line, later settings
    override earlier settings."""
    micro = grpo.PROMPTS * grpo.ANSWERS // max(2, plan.npus) if plan.generated else 4
    settings: dict[str, object] = {
        "algorithm.adv_estimator": "gae",
        "critic.model.path": plan.model,
        "critic.model.tokenizer_path": plan.model,
        "critic.optim.lr": 5e-3 if plan.generated else 1e-5,
        "critic.ppo_micro_batch_size_per_gpu": micro,
        "critic.ppo_mini_batch_size": grpo.PROMPTS,
    }
    return [*grpo.arguments(plan), *(f"{key}={value}" for key, value in settings.items())]


JOB = replace(grpo.JOB, name="ppo", arguments=arguments, engines=(pins.SMALL,))
