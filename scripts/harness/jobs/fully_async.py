"""Fully asynchronous GRPO: a rollouter and a trainer run independently, and weights are synced after each step."""

from __future__ import annotations

from dataclasses import replace

from harness import pins
from harness.jobs import one_step_off
from harness.jobs.base import Plan


def _arguments(plan: Plan, shared: dict[str, object], *options: str) -> list[str]:
    chosen = shared | {
        # Samples go into a queue one by one, and the trainer takes a mini-batch at a time.
        "data.train_batch_size": 0,
        "data.gen_batch_size": 1,
        "data.return_raw_chat": True,
        "actor_rollout_ref.rollout.free_cache_engine": False,
        "actor_rollout_ref.rollout.calculate_log_probs": True,
        "async_training.require_batches": 1,
        "async_training.trigger_parameter_sync_step": 1,
        "async_training.staleness_threshold": 0.5,
        "async_training.partial_rollout": True,
        "rollout.total_rollout_steps": one_step_off.PROMPTS * plan.steps,
        "rollout.test_freq": 1000,
        "rollout.total_epochs": plan.steps,
        "trainer.save_freq": plan.steps,
    }
    words = (f"{key}={value}" for key, value in chosen.items())
    return ["-m", "recipe.fully_async_policy.fully_async_main", *options, *words]


def fsdp(plan: Plan) -> list[str]:
    """Return the module to run and the Hydra overrides for FSDP workers. The overrides omit trainer.device, which
    verl-npu sets."""
    return _arguments(plan, one_step_off.over_fsdp(plan))


def megatron_workers(plan: Plan) -> list[str]:
    """Return the module to run and the Hydra overrides for Megatron workers."""
    # Megatron's scheduler needs a length, and this trainer does not know the number of steps.
    shared = one_step_off.over_megatron(plan) | {"actor_rollout_ref.actor.optim.lr_decay_steps": plan.steps}
    return _arguments(plan, shared, "--config-name=fully_async_ppo_megatron_trainer")


JOB = replace(one_step_off.JOB, name="fully_async", arguments=fsdp, engines=(pins.SMALL,))
MEGATRON = replace(one_step_off.MEGATRON, name="fully_async_megatron", arguments=megatron_workers)
