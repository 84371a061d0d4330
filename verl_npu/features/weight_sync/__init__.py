"""Weight sync from trainer to rollout over HCCL. Every rank checks the sync.

`transport` moves bytes between ranks and knows nothing about verl; `transport.sync` does one sync. `engines` loads the
weights into rollout engines. `patches` uses both to replace upstream's own sync.
"""

from __future__ import annotations

from ...registry.patch import Feature

weight_sync = Feature("weight_sync", "Weights go from trainer to rollout over HCCL, and every rank checks them.")

GROUP = "actor_rollout"
"""The name of upstream's group of trainers and rollouts."""


@weight_sync.part(
    "recipe",
    patches="""
    bypass_fully_async_fsdp_checkpoint_engine bypass_fully_async_megatron_checkpoint_engine
    gather_gkd_weights_without_group_dst make_fully_async_group_over_hccl make_gkd_group_over_hccl
    make_one_step_off_group_over_hccl make_one_step_off_group_over_hccl_in_init_workers
    receive_gkd_rollout_weights_over_hccl send_gkd_trainer_weights_over_hccl
    skip_fully_async_fsdp_checkpoint_engine_setup skip_fully_async_megatron_checkpoint_engine_setup
    sync_early_one_step_off_fsdp_weights_over_hccl sync_early_one_step_off_megatron_weights_over_hccl
    sync_fully_async_fsdp_weights_over_hccl sync_fully_async_megatron_weights_over_hccl
    sync_one_step_off_fsdp_weights_over_hccl sync_one_step_off_megatron_weights_over_hccl
    """,
)
def _recipes() -> Feature:
    from .patches.recipes import recipes

    return recipes


@weight_sync.part("transfer_queue", patches="name_answers_by_old_weights")
def _answers() -> Feature:
    from .patches.answers import answers

    return answers
