"""GRPO one step off policy over verl's own checkpoint engine: from v0.7.1 on the way of all that trains apart."""

from __future__ import annotations

from harness.jobs import grpo, one_step_off
from harness.jobs.base import Job, Plan


def arguments(plan: Plan) -> list[str]:
    """Return the module and Hydra overrides. trainer.device is not among them: that is verl-npu's business."""
    chosen = one_step_off.settings(plan) | {
        "data.train_batch_size": one_step_off.PROMPTS,
        "trainer.total_training_steps": plan.steps,
        "trainer.total_epochs": plan.steps,
        "trainer.save_freq": plan.steps,
        "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes": 1,
    }
    chosen = {key.replace("custom_reward_function", plan.pin.reward): value for key, value in chosen.items()}
    return [
        *("-m", "verl.experimental.one_step_off_policy.main_ppo"),
        *(f"{key}={value}" for key, value in chosen.items()),
        *plan.pin.small,
    ]


JOB = Job(
    name="checkpoint_engine",
    pins=("v0.7.1", "v0.9.1"),
    arguments=arguments,
    metric="critic/score/mean",
    trained_model=grpo.trained_model,
    idle=("megatron", "rollout"),
    environment=one_step_off.JOB.environment,
    sources=("VERL_NPU_VLLM_ASCEND",),
    evidence=r"weight sync (\d+) of the checkpoint engine: the engine's worker .*the engine holds them bit for bit",
)
