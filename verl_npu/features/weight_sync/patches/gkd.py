"""Patches of `recipe.gkd`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....registry.source.probe import AllOf, Defines, Mentions, Not
from ..feature import GROUP, weight_sync
from .collective import in_place_of_ray
from .workers import sync_megatron

_TRAINER = "recipe.gkd.ray_trainer:OnPolicyDistillTrainer.init_workers"
_ACTOR = "recipe.gkd.megatron_workers:MegatronOnPolicyDistillActorWorker.sync_rollout_weights"
_ROLLOUT = "recipe.gkd.megatron_workers:MegatronOnPolicyDistillRolloutWorker.sync_rollout_weights"

_WEIGHTS = "recipe.gkd.megatron_workers:MegatronOnPolicyDistillActorWorker._get_actor_params_generator"
_GATHER = "recipe.gkd.megatron_utils"

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


@weight_sync.wrap(
    _WEIGHTS,
    why="the recipe's own generator calls torch.distributed.gather with group_dst, which torch_npu's gather does not "
    "take up to 2.10: with tensor or expert parallelism the first sync ends with a TypeError",
    how="without a bridge the weights are gathered by verl's generator, as in the other recipes; torch_npu's gather "
    "is an all_gather as well",
    link="https://github.com/Ascend/pytorch/blob/v2.7.1-7.1.0/torch_npu/distributed/distributed_c10d.py",
    retired_by=AllOf(Defines(_WEIGHTS), Not(Mentions(_GATHER, "group_dst"))),
    requires=Mentions(_GATHER, "group_dst"),
)
def distill_weights(original: Callable[..., Any], worker: Any) -> Any:
    """Yield the actor's weights by Hugging Face's names, whole on each trainer."""
    if worker.bridge is not None:
        return original(worker)
    from verl.models.mcore import get_mcore_weight_converter
    from verl.utils.megatron_utils import per_tensor_generator

    return per_tensor_generator(
        worker.actor.actor_module,
        worker.actor_model_config,
        get_mcore_weight_converter(worker.actor_model_config, worker.dtype),
        worker.tf_config,
        {"qkv_layer_name": "self_attention.linear_qkv.", "gate_proj_layer_name": "linear_fc1."},
    )
