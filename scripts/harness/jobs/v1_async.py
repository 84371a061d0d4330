"""GRPO with verl's v1 trainer in its asynchronous modes: answers are interrupted and resumed while it trains."""

from __future__ import annotations

from dataclasses import replace

from harness.jobs import grpo
from harness.jobs.base import Job, Plan

SYNC_STEP = 2
"""The number of mini-batches between two weight syncs."""


def _over(plan: Plan, mode: str, settings: dict[str, object]) -> list[str]:
    settings = {
        "trainer.v1.trainer_mode": mode,
        "actor_rollout_ref.actor.strategy": "fsdp2",
        "actor_rollout_ref.rollout.calculate_log_probs": True,
        "data.gen_batch_size": 1,
        "transfer_queue.enable": True,
        **settings,
    }
    return [*grpo.arguments(plan), *(f"{key}={value}" for key, value in settings.items())]


def separate(plan: Plan) -> list[str]:
    """Return the module to run and the Hydra overrides for a run with the trainer and the rollout on separate NPUs."""
    trainers = max(1, plan.npus // 2)
    return _over(
        plan,
        "separate_async",
        {
            "trainer.v1.separate_async.parameter_sync_step": SYNC_STEP,
            "trainer.n_gpus_per_node": trainers,
            "actor_rollout_ref.rollout.nnodes": 1,
            "actor_rollout_ref.rollout.n_gpus_per_node": plan.npus - trainers,
            # On NPUs, the HCCL engine has this name.
            "actor_rollout_ref.rollout.checkpoint_engine.backend": "nccl",
            "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes": 16,
            "actor_rollout_ref.actor.ppo_mini_batch_size": grpo.PROMPTS // SYNC_STEP,
        },
    )


def colocated(plan: Plan) -> list[str]:
    """Return the module to run and the Hydra overrides for a run with the trainer and the rollout on the same NPUs.
    The rollout releases the NPUs for each training step."""
    return _over(plan, "colocate_async", {})


SEPARATE: Job = replace(grpo.JOB, name="separate_async", arguments=separate, idle=("megatron",))
COLOCATED: Job = replace(grpo.JOB, name="colocate_async", arguments=colocated)
