"""Patches of `recipe.one_step_off_policy`."""

from __future__ import annotations

from collections.abc import Callable

from ....errors import GroupError
from ....registry.source.probe import AllOf, Defines, Mentions, Not
from ..feature import GROUP, weight_sync
from .collective import create_collective_group, in_place_of_ray
from .protocols import Trainer, Worker
from .workers import sync_fsdp, sync_megatron

_RECIPE = "recipe.one_step_off_policy"
_TRAINER = f"{_RECIPE}.ray_trainer:OneStepOffRayTrainer"
_FSDP = f"{_RECIPE}.fsdp_workers"
_MEGATRON = f"{_RECIPE}.megatron_workers"

_GROUP_WHY = "The trainer's process sees no NPU and makes the group of Ray's collectives, which have no HCCL. The job "
_GROUP_WHY += "ends with `RuntimeError: NCCL is not available`."
_GROUP_HOW = "The workers meet at a store that rank 0 serves and make an HCCL group of their own. The setting "
_GROUP_HOW += "trainer.device decides, because the trainer's process sees no NPU."
_SYNC_WHY = "The weights are broadcast tensor by tensor through Ray's collectives, which have no HCCL."
_SYNC_HOW = "The weights go over the HCCL group in buckets, after all ranks have agreed on names, shapes and dtypes."
_LINK = "https://github.com/volcengine/verl/issues/4651"


@weight_sync.replace(
    f"{_TRAINER}._create_weight_sync_group",
    why=_GROUP_WHY,
    how=_GROUP_HOW,
    link=_LINK,
    retired_by=Mentions(f"{_TRAINER}._create_weight_sync_group", "npu"),
    requires=Mentions(f"{_TRAINER}._create_weight_sync_group", "create_collective_group"),
)
def make_one_step_off_group_over_hccl(trainer: Trainer) -> None:
    """Make the group of all trainers and rollouts. Raises GroupError if the trainer's device is not npu."""
    if trainer.device_name != "npu":
        raise GroupError(
            subject=f"trainer.device={trainer.device_name}",
            expected="npu",
            found=f"{trainer.device_name}, for which this installation has no NCCL",
            fix="leave trainer.device out",
            override="VERL_NPU_DISABLE=weight_sync",
        )
    workers = trainer.actor_wg.workers + trainer.rollout_wg.workers
    create_collective_group(workers, len(workers), range(len(workers)), "hccl", GROUP)


@weight_sync.wrap(
    f"{_TRAINER}.init_workers",
    why=_GROUP_WHY,
    how=_GROUP_HOW,
    link="https://github.com/ray-project/ray/issues/55477",
    retired_by=AllOf(
        Defines(f"{_TRAINER}.init_workers"), Not(Mentions(f"{_TRAINER}.init_workers", "create_collective_group"))
    ),
    requires=Mentions(f"{_TRAINER}.init_workers", "create_collective_group"),
)
def make_one_step_off_group_over_hccl_in_init_workers(original: Callable[[Trainer], None], trainer: Trainer) -> None:
    """Set up the workers; the group that would be one of Ray's collectives is made over HCCL."""
    if trainer.device_name != "npu":
        return original(trainer)
    with in_place_of_ray():
        return original(trainer)


@weight_sync.replace(
    f"{_FSDP}:DetachSync.sync_rollout_weights",
    why=_SYNC_WHY,
    how=_SYNC_HOW,
    link=_LINK,
    retired_by=Mentions(f"{_FSDP}:DetachSync.sync_rollout_weights", "_weight_sync_group"),
    requires=Mentions(f"{_FSDP}:DetachSync.sync_rollout_weights", "collective"),
)
def sync_one_step_off_fsdp_weights_over_hccl(worker: Worker) -> None:
    """Sync the weights of one worker over FSDP."""
    sync_fsdp(worker, GROUP)


@weight_sync.replace(
    f"{_MEGATRON}:DetachSync.sync_rollout_weights",
    why=_SYNC_WHY,
    how=_SYNC_HOW,
    link=_LINK,
    retired_by=Mentions(f"{_MEGATRON}:DetachSync.sync_rollout_weights", "_weight_sync_group"),
    requires=Mentions(f"{_MEGATRON}:DetachSync.sync_rollout_weights", "collective"),
)
def sync_one_step_off_megatron_weights_over_hccl(worker: Worker) -> None:
    """Sync the weights of one worker over Megatron."""
    sync_megatron(worker, GROUP)


@weight_sync.replace(
    f"{_FSDP}:ActorRolloutRefWorker.sync_rollout_weights",
    why=_SYNC_WHY,
    how=_SYNC_HOW,
    link=_LINK,
    retired_by=AllOf(
        Defines(f"{_FSDP}:ActorRolloutRefWorker.sync_rollout_weights"),
        Not(Mentions(f"{_FSDP}:ActorRolloutRefWorker.sync_rollout_weights", "collective")),
    ),
    requires=Mentions(f"{_FSDP}:ActorRolloutRefWorker.sync_rollout_weights", "collective"),
)
def sync_early_one_step_off_fsdp_weights_over_hccl(worker: Worker) -> None:
    """Sync the weights of one worker over FSDP, as of August 2025."""
    sync_fsdp(worker, GROUP)


@weight_sync.replace(
    f"{_MEGATRON}:ActorRolloutRefWorker.sync_rollout_weights",
    why=_SYNC_WHY,
    how=_SYNC_HOW,
    link=_LINK,
    retired_by=AllOf(
        Defines(f"{_MEGATRON}:ActorRolloutRefWorker.sync_rollout_weights"),
        Not(Mentions(f"{_MEGATRON}:ActorRolloutRefWorker.sync_rollout_weights", "collective")),
    ),
    requires=Mentions(f"{_MEGATRON}:ActorRolloutRefWorker.sync_rollout_weights", "collective"),
)
def sync_early_one_step_off_megatron_weights_over_hccl(worker: Worker) -> None:
    """Sync the weights of one worker over Megatron, as of August 2025."""
    sync_megatron(worker, GROUP)
