"""The job that proves a patch: one of `scripts/smoke.sh` in which the patched code runs."""

from __future__ import annotations

from ...registry.patch import Patch
from ...registry.source.tree import Target

__all__ = ["proving_job"]

# What a target's name must hold, and the job that runs it. The first that fits counts, so trainers of their own come
# before the parts that all jobs share.
_BY_NAME = (
    (("gkd",), "gkd"),
    (("one_step_off", "megatron"), "one_step_off_megatron"),
    (("one_step_off",), "one_step_off"),
    (("fully_async", "megatron"), "fully_async_megatron"),
    (("fully_async",), "fully_async"),
    (("experimental.separation",), "fully_async"),
    (("dapo",), "dapo"),
    (("sft_trainer",), "sft"),
)
_BY_FEATURE = {"weight_sync": "one_step_off", "megatron": "megatron"}
_WITH_CRITIC = {"megatron": "megatron_ppo"}
# Families of models, recipes and rollouts that no job trains.
_NOT_RUN = ("_vl", "recipe.spin", "recipe.prime", "hf_rollout")


def proving_job(patch: Patch, target: Target) -> str:
    """Return the job of `scripts/smoke.sh` that runs a patch at a target; empty if no job does."""
    name = f"{target.module}:{target.qualname}"
    if any(word in name for word in _NOT_RUN):
        return ""
    for words, job in _BY_NAME:
        if all(word in name for word in words):
            return job
    if "moe" in name:
        return "megatron_moe"
    if "critic" in name.lower() or "value" in name.lower():
        return _WITH_CRITIC.get(patch.feature, "ppo")
    return _BY_FEATURE.get(patch.feature, "grpo")
