"""GRPO of a small Qwen3.5, whose linear attention uses flash-linear-attention's NPU kernels or, without that package,
transformers' torch code. Triton's interpreter computes the kernels, so the batches are small."""

from __future__ import annotations

from dataclasses import replace

from harness import pins
from harness.jobs import grpo
from harness.jobs.base import Plan

_PROMPTS, _ANSWERS = 2, 4


def arguments(plan: Plan) -> list[str]:
    """Return the module to run and the Hydra overrides for a GRPO run with small batches. If an override occurs more
    than once, its last value applies."""
    small = {
        "data.train_batch_size": _PROMPTS,
        "actor_rollout_ref.rollout.n": _ANSWERS,
        "actor_rollout_ref.actor.ppo_mini_batch_size": _PROMPTS,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": _ANSWERS,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": _ANSWERS,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": _ANSWERS,
    }
    return [*grpo.arguments(plan), *(f"{key}={value}" for key, value in small.items())]


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
