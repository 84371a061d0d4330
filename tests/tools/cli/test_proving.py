"""The job that is named for a patch is one that runs it."""

from __future__ import annotations

import pytest
from harness.jobs import JOBS

from verl_npu.features import load
from verl_npu.registry.patch import Patch
from verl_npu.registry.source.tree import Target
from verl_npu.tools.cli.proving import proving_job

PATCHES = {patch.id: patch for feature in load() for patch in feature}


@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES)
def test_the_job_of_a_patch_exists_and_runs_its_feature(patch: Patch) -> None:
    job = proving_job(patch, patch.target)
    if job:
        assert patch.feature not in JOBS[job].idle


@pytest.mark.parametrize(
    ("id", "job"),
    [
        ("device.set_npu_in_run_ppo_config", "grpo"),
        ("attention.use_configured_attention_for_sft", "sft"),
        ("attention.use_configured_attention_for_critic", "ppo"),
        ("megatron.give_mindspeed_the_critics_overrides", "megatron_ppo"),
        ("weight_sync.sync_one_step_off_megatron_weights_over_hccl", "one_step_off_megatron"),
        ("weight_sync.sync_fully_async_fsdp_weights_over_hccl", "fully_async"),
        ("weight_sync.make_gkd_group_over_hccl", "gkd"),
        ("fused_ops.fuse_rotary_in_qwen3_moe", "megatron_moe"),
        ("attention.avoid_flash_attn_in_spin_reward_model", ""),
        ("fused_ops.fuse_rotary_in_qwen3_vl", ""),
    ],
)
def test_a_patch_has_the_job_in_which_its_target_is_run(id: str, job: str) -> None:
    assert proving_job(PATCHES[id], PATCHES[id].target) == job


def test_the_new_place_of_a_target_decides() -> None:
    patch = PATCHES["device.set_npu_in_run_ppo_config"]
    assert proving_job(patch, Target.parse("verl.trainer.sft_trainer:run_sft")) == "sft"
