"""GRPO of a small Qwen3.5, whose linear attention uses flash-linear-attention's NPU kernels or, without that package,
transformers' torch code. Triton's interpreter computes the kernels, so the batches are small."""

from __future__ import annotations

from dataclasses import replace

from harness import pins
from harness.jobs import grpo
from harness.jobs.base import Plan

_BATCH = 2
_SMALL = (
    *("data.train_batch_size", "actor_rollout_ref.rollout.n", "actor_rollout_ref.actor.ppo_mini_batch_size"),
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    *(f"actor_rollout_ref.{part}.log_prob_micro_batch_size_per_gpu" for part in ("ref", "rollout")),
)


def arguments(plan: Plan) -> list[str]:
    """Return the module and the Hydra overrides of GRPO with small batches. The last value of an override wins."""
    # The engine uses the kernels for each token.
    return [*grpo.arguments(plan), *(f"{key}={_BATCH}" for key in _SMALL), "data.max_response_length=4"]


KERNELS = replace(
    grpo.JOB,
    name="linear_attention",
    arguments=arguments,
    packages=("fla-core==0.6.0", "triton-ascend==3.2.0"),
    architecture="qwen3_5",
    # The prompts have no images.
    still=r"\.visual\.",
    uses=("linear_attention",),
    lines=("verl-npu: linear attention uses the NPU kernels of flash-linear-attention",),
    engines=(pins.SMALL,),
)
TORCH = replace(
    KERNELS,
    name="linear_attention_torch",
    packages=(),
    lines=("verl-npu: linear attention runs transformers' torch code, .* flash-linear-attention is not installed",),
)
