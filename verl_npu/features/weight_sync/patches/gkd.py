"""Patches of `recipe.gkd`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from ....registry.source.probe import AllOf, Defines, Mentions, Not
from ..feature import GROUP, weight_sync
from ..transport.drawing import Weight
from .collective import in_place_of_ray
from .protocols import Trainer, Worker
from .workers import sync_megatron

_TRAINER = "recipe.gkd.ray_trainer:OnPolicyDistillTrainer.init_workers"
_ACTOR = "recipe.gkd.megatron_workers:MegatronOnPolicyDistillActorWorker.sync_rollout_weights"
_ROLLOUT = "recipe.gkd.megatron_workers:MegatronOnPolicyDistillRolloutWorker.sync_rollout_weights"

_WEIGHTS = "recipe.gkd.megatron_workers:MegatronOnPolicyDistillActorWorker._get_actor_params_generator"
_GATHER = "recipe.gkd.megatron_utils"

_WHY = "The weights are broadcast through Ray's collectives, which have no HCCL."
_HOW = "The weights go over the HCCL group in buckets of rollout.update_weights_bucket_megabytes, after all ranks "
_HOW += "have agreed on names, shapes and dtypes."
_LINK = "https://github.com/ray-project/ray/issues/55477"


class ActorWorker(Worker, Protocol):
    """The recipe's trainer over Megatron."""

    bridge: object
    actor: ActorModel
    actor_model_config: object
    dtype: object
    tf_config: object


class ActorModel(Protocol):
    """What holds the model of that trainer."""

    actor_module: object


@weight_sync.wrap(
    _TRAINER,
    why="The trainer makes a group of Ray's collectives under the fixed name nccl. On NPUs the job ends with "
    "`RuntimeError: NCCL is not available`.",
    how="The workers meet at a store that rank 0 serves and make an HCCL group of their own. The setting "
    "trainer.device decides, because the trainer's process sees no NPU.",
    link=_LINK,
    retired_by=Mentions(_TRAINER, "npu"),
    requires=Mentions(_TRAINER, "create_collective_group"),
)
def make_gkd_group_over_hccl(original: Callable[[Trainer], None], trainer: Trainer) -> None:
    """Set up the workers; the group that would be one of Ray's collectives is made over HCCL."""
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
def send_gkd_trainer_weights_over_hccl(worker: Worker) -> None:
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
def receive_gkd_rollout_weights_over_hccl(worker: Worker) -> None:
    """Receive the weights of one rollout."""
    sync_megatron(worker, GROUP)


@weight_sync.wrap(
    _WEIGHTS,
    why="With tensor or expert parallelism the first sync ends with a TypeError about `group_dst`: the recipe passes "
    "it to torch.distributed.gather, and torch_npu's gather does not take it up to 2.10.",
    how="Without a bridge the weights are gathered by verl's own generator, as in the other recipes. That costs no "
    "more, because torch_npu's gather is an all_gather as well.",
    link="https://github.com/Ascend/pytorch/blob/v2.7.1-7.1.0/torch_npu/distributed/distributed_c10d.py",
    retired_by=AllOf(Defines(_WEIGHTS), Not(Mentions(_GATHER, "group_dst"))),
    requires=Mentions(_GATHER, "group_dst"),
)
def gather_gkd_weights_without_group_dst(
    original: Callable[[ActorWorker], Iterable[Weight]], worker: ActorWorker
) -> Iterable[Weight]:
    """Return the trainer's weights under Hugging Face's names, whole on each trainer."""
    if worker.bridge is not None:
        return original(worker)
    from verl.models.mcore import get_mcore_weight_converter
    from verl.utils.megatron_utils import per_tensor_generator

    weights: Iterable[Weight] = per_tensor_generator(
        worker.actor.actor_module,
        worker.actor_model_config,
        get_mcore_weight_converter(worker.actor_model_config, worker.dtype),
        worker.tf_config,
        {"qkv_layer_name": "self_attention.linear_qkv.", "gate_proj_layer_name": "linear_fc1."},
    )
    return weights
