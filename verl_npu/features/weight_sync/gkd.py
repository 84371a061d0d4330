"""Patches of `recipe.gkd`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...registry.probe import AllOf, Defines, Mentions, Not
from .collective import in_place_of_ray
from .feature import GROUP, weight_sync
from .workers import sync_megatron

_TRAINER = "recipe.gkd.ray_trainer:OnPolicyDistillTrainer.init_workers"
_ACTOR = "recipe.gkd.megatron_workers:MegatronOnPolicyDistillActorWorker.sync_rollout_weights"
_ROLLOUT = "recipe.gkd.megatron_workers:MegatronOnPolicyDistillRolloutWorker.sync_rollout_weights"

_WHY = "the weights go through Ray's collectives, which have no HCCL"
_HOW = "they go over the HCCL group in buckets of rollout.update_weights_bucket_megabytes, checked on all ranks first"
_LINK = "https://github.com/ray-project/ray/issues/55477"


@weight_sync.wrap(
    _TRAINER,
    why="the group is one of Ray's collectives by the literal name nccl: on NPUs the job dies",
    how="the workers meet at a store of rank 0's and make an HCCL group of their own; decided by trainer.device",
    link=_LINK,
    retired_by=Mentions(_TRAINER, "npu"),
    requires=Mentions(_TRAINER, "create_collective_group"),
)
def distill_workers(original: Callable[..., None], trainer: Any) -> None:
    """Set up the workers; what is asked of Ray's collectives in there is ours."""
    if trainer.device_name != "npu":
        return original(trainer)
    with in_place_of_ray():
        return original(trainer)


@weight_sync.replace(
    _ACTOR,
    why=_WHY,
    how=_HOW,
    link=_LINK,
    retired_by=AllOf(Defines(_ACTOR), Not(Mentions(_ACTOR, "collective"))),
    requires=Mentions(_ACTOR, "collective"),
)
def distill_actor(worker: Any) -> None:
    """Send the weights of one trainer."""
    sync_megatron(worker, GROUP, int(worker.config.rollout.update_weights_bucket_megabytes) << 20)


@weight_sync.replace(
    _ROLLOUT,
    why=_WHY,
    how=_HOW,
    link=_LINK,
    retired_by=AllOf(Defines(_ROLLOUT), Not(Mentions(_ROLLOUT, "collective"))),
    requires=Mentions(_ROLLOUT, "collective"),
)
def distill_rollout(worker: Any) -> None:
    """Receive the weights of one rollout."""
    sync_megatron(worker, GROUP)
