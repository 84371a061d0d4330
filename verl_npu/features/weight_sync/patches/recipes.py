"""Patches of upstream's recipes that sync weights over Ray's collectives: fully_async_policy, gkd, and
one_step_off_policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from types import ModuleType
from typing import Any, TypeVar

from ....errors import GroupError
from ....registry.source.probe import AllOf, AnyOf, Calls, Defines, Not, Passes
from .. import GROUP, weight_sync
from ..transport.tensors import Weight
from . import collective as over_hccl
from .collective import create_collective_group, in_place_of_ray
from .workers import Worker, sync_fsdp, sync_megatron

recipes = weight_sync.more()

_ASYNC = "recipe.fully_async_policy"
_SYNCHRONIZER = f"{_ASYNC}.param_sync"
_ASYNC_FSDP = f"{_ASYNC}.fsdp_workers:DetachNcclSync"
_ASYNC_MEGATRON = f"{_ASYNC}.megatron_worker:DetachNcclSync"
_SYNC_WHY = "Upstream broadcasts the weights tensor by tensor through Ray's collectives, which do not support HCCL."
_SYNC_HOW = "After all ranks have agreed on names, shapes, and dtypes, the weights go over the HCCL group in buckets."
_ENGINE_WHY = (
    "The recipe's own checkpoint engine broadcasts through Ray's collectives, which do not support HCCL, and "
)
_ENGINE_WHY += "runs npu-smi to find its NPU."
_ASYNC_LINK = "https://github.com/volcengine/verl/pull/5043"
_GKD_TRAINER = "recipe.gkd.ray_trainer:OnPolicyDistillTrainer.init_workers"
_GKD_ACTOR = "recipe.gkd.megatron_workers:MegatronOnPolicyDistillActorWorker.sync_rollout_weights"
_GKD_ROLLOUT = "recipe.gkd.megatron_workers:MegatronOnPolicyDistillRolloutWorker.sync_rollout_weights"
_GKD_WEIGHTS = "recipe.gkd.megatron_workers:MegatronOnPolicyDistillActorWorker._get_actor_params_generator"
_GROUP_DST = Passes("recipe.gkd.megatron_utils", "group_dst", 0)
_GKD_WHY = "Upstream broadcasts the weights through Ray's collectives, which do not support HCCL."
_GKD_HOW = (
    "After all ranks have agreed on names, shapes, and dtypes, the weights go over the HCCL group in buckets of "
)
_GKD_HOW += "rollout.update_weights_bucket_megabytes."
_RAY_LINK = "https://github.com/ray-project/ray/issues/55477"
_ONE_STEP = "recipe.one_step_off_policy"
_ONE_STEP_TRAINER = f"{_ONE_STEP}.ray_trainer:OneStepOffRayTrainer"
_ONE_STEP_FSDP = f"{_ONE_STEP}.fsdp_workers"
_ONE_STEP_MEGATRON = f"{_ONE_STEP}.megatron_workers"
_GROUP_WHY = (
    "The trainer's process sees no NPU and makes the group with Ray's collectives, which do not support HCCL. "
)
_GROUP_WHY += "The job ends with `RuntimeError: NCCL is not available`."
_GROUP_HOW = (
    "The workers meet at a store that rank 0 serves, and make their own HCCL group. The setting trainer.device "
)
_GROUP_HOW += "decides, because the trainer's process sees no NPU."
_ONE_STEP_LINK = "https://github.com/volcengine/verl/issues/4651"

_VLLM_ROLLOUT = "verl.workers.rollout.vllm_rollout"
_SGLANG_ROLLOUT = "verl.workers.rollout.sglang_rollout.sglang_rollout"
_USES = (
    "verl.utils.device:get_torch_device()",
    "verl.utils.vllm.patch:patch_vllm_moe_model_weight_loader(model)",
    "verl/trainer/config/ppo_trainer.yaml: actor_rollout_ref.rollout.name",
    f"{_VLLM_ROLLOUT}.vllm_rollout:vLLMAsyncRollout.inference_engine or "
    f"{_VLLM_ROLLOUT}.vllm_rollout_spmd:vLLMRollout.inference_engine",
)
"""The names of upstream that a sync uses for every kind of worker."""
_SGLANG = (
    "verl.workers.fsdp_workers:ActorRolloutRefWorker.rollout_device_mesh",
    f"{_SGLANG_ROLLOUT}:SGLangRollout._engine or {_SGLANG_ROLLOUT}:ServerAdapter._engine",
)
"""The names of upstream that a sync additionally uses for an SGLang engine."""


def _fsdp_uses(trainer: str, rollout: str) -> tuple[str, ...]:
    """Return the names of upstream that a sync uses for FSDP workers of these classes."""
    return (
        *_USES,
        *_worker_uses(trainer, rollout, "_get_actor_params()", "actor_module_fsdp"),
        "verl.utils.fsdp_utils:load_fsdp_model_to_gpu(model)",
        "verl.utils.fsdp_utils:offload_fsdp_model_to_cpu(model)",
    )


def _megatron_uses(trainer: str, rollout: str) -> tuple[str, ...]:
    """Return the names of upstream that a sync uses for Megatron workers of these classes."""
    return (
        *_USES,
        *_worker_uses(trainer, rollout, "_get_actor_params_generator()", "actor_module"),
        "verl.utils.megatron_utils:load_megatron_model_to_gpu(models)",
        "verl.utils.megatron_utils:offload_megatron_model_to_cpu(models)",
    )


def _worker_uses(trainer: str, rollout: str, *trained: str) -> Iterator[str]:
    yield from (f"{trainer}.{name}" for name in ("_is_actor", "_is_offload_param", "_weights_info", *trained))
    yield from (f"{rollout}.{name}" for name in ("_is_actor", "_weights_info", "config", "rollout"))


def _current_classes(module: str) -> tuple[str, str]:
    """Return the names of the trainer's and the rollout's classes in a recipe."""
    return f"{module}:DetachActorWorker", f"{module}:DetachAsyncRolloutWorker"


def _early_classes(module: str) -> tuple[str, str]:
    """Return the names of the trainer's and the rollout's classes in a recipe, for the August 2025 revision of
    verl."""
    return f"{module}:ActorRolloutRefWorker", f"{module}:RolloutWorker"


_GKD_ACTOR_CLASS = _GKD_ACTOR.rpartition(".")[0]
_GKD_WORKERS = (_GKD_ACTOR_CLASS, _GKD_ROLLOUT.rpartition(".")[0])
_GKD_USES = (
    *_megatron_uses(*_GKD_WORKERS),
    "verl/trainer/config/ppo_megatron_trainer.yaml: actor_rollout_ref.rollout.update_weights_bucket_megabytes",
)
# Upstream's own fix at later revisions: the workers make a group without Ray's collectives.
_BROADCAST = "_weight_sync_group.broadcast"
_MAKE_GROUP = "create_weight_sync_group"

Method = TypeVar("Method", bound=Callable[..., object])


def _sync(
    target: str, link: str, why: str = _SYNC_WHY, how: str = _SYNC_HOW, *, uses: Sequence[str], name: str
) -> Callable[[Method], Method]:
    """Return a decorator that replaces `target`, a method that broadcasts the weights over Ray's collectives.

    The patch is retired if upstream's method uses a separate group.
    """
    retired_by = Calls(target, _BROADCAST)
    requires = Calls(target, "collective.broadcast")
    return recipes.replace(
        target,
        uses=uses,
        may_use=_SGLANG,
        why=why,
        how=how,
        link=link,
        retired_by=retired_by,
        requires=requires,
        name=name,
    )


@recipes.set(
    f"{_SYNCHRONIZER}:collective",
    why="The synchronizer is an actor that sees no NPU and makes the group with Ray's collectives, which do not "
    "support HCCL. The job ends with `RuntimeError: NCCL is not available`.",
    how="We replace `collective` in its module with a module of verl-npu. There, the workers meet at a store that "
    "rank 0 serves, and make their own HCCL group.",
    link=_ASYNC_LINK,
    retired_by=Calls(_SYNCHRONIZER, _MAKE_GROUP),
    requires=Calls(_SYNCHRONIZER, "create_collective_group"),
)
def make_fully_async_group_over_hccl(rays: ModuleType) -> ModuleType:
    """Return verl-npu's module that creates the group, instead of Ray's module."""
    return over_hccl


def _bypass(worker: str, uses: Sequence[str], name: str) -> Callable[[Method], Method]:
    """Return a decorator that replaces the worker's method that syncs through the recipe's own checkpoint engine."""
    target = f"{worker}.sync_rollout_weights_by_checkpoint"
    return recipes.replace(
        target,
        uses=uses,
        may_use=_SGLANG,
        why=_ENGINE_WHY,
        how="With checkpoint_engine.enable, the weights go over the HCCL group in buckets, as they do without it.",
        link=_ASYNC_LINK,
        retired_by=Calls(target, _BROADCAST),
        requires=Defines(target),
        name=name,
    )


def _skip_setup(worker: str, name: str) -> Callable[[Method], Method]:
    """Return a decorator that wraps the worker's method that creates the recipe's own checkpoint engine."""
    return recipes.wrap(
        f"{worker}.init_checkpoint_engine",
        why=_ENGINE_WHY,
        how="We do not create the checkpoint engine, because nothing uses it.",
        link=_ASYNC_LINK,
        retired_by=Calls(f"{worker}.sync_rollout_weights_by_checkpoint", _BROADCAST),
        requires=Defines(f"{worker}.init_checkpoint_engine"),
        may_skip=True,
        name=name,
    )


@_sync(
    f"{_ASYNC_FSDP}.sync_rollout_weights",
    _ASYNC_LINK,
    uses=_fsdp_uses(*_current_classes(f"{_ASYNC}.fsdp_workers")),
    name="sync_fully_async_fsdp_weights_over_hccl",
)
@_bypass(
    _ASYNC_FSDP,
    _fsdp_uses(*_current_classes(f"{_ASYNC}.fsdp_workers")),
    name="bypass_fully_async_fsdp_checkpoint_engine",
)
def sync_group_of_fsdp_workers(worker: Worker, sync_group_name: str = GROUP) -> None:
    """Sync the weights of one FSDP worker over HCCL."""
    sync_fsdp(worker, sync_group_name)


@_sync(
    f"{_ASYNC_MEGATRON}.sync_rollout_weights",
    _ASYNC_LINK,
    uses=_megatron_uses(*_current_classes(f"{_ASYNC}.megatron_worker")),
    name="sync_fully_async_megatron_weights_over_hccl",
)
@_bypass(
    _ASYNC_MEGATRON,
    _megatron_uses(*_current_classes(f"{_ASYNC}.megatron_worker")),
    name="bypass_fully_async_megatron_checkpoint_engine",
)
def sync_group_of_megatron_workers(worker: Worker, sync_group_name: str = GROUP) -> None:
    """Sync the weights of one Megatron worker over HCCL."""
    sync_megatron(worker, sync_group_name)


@_skip_setup(_ASYNC_FSDP, name="skip_fully_async_fsdp_checkpoint_engine_setup")
@_skip_setup(_ASYNC_MEGATRON, name="skip_fully_async_megatron_checkpoint_engine_setup")
def skip_checkpoint_engine_setup(
    original: Callable[..., None], worker: Worker, rank_offset: int, actor_num: int, rollout_num: int
) -> None:
    """Skip the creation of the recipe's checkpoint engine."""


@recipes.wrap(
    _GKD_TRAINER,
    uses=("recipe.gkd.ray_trainer:OnPolicyDistillTrainer.device_name",),
    why="The trainer makes a group with Ray's collectives and the fixed backend nccl. On NPUs the job ends with "
    "`RuntimeError: NCCL is not available`.",
    how="The workers meet at a store that rank 0 serves, and make their own HCCL group. The setting trainer.device "
    "decides, because the trainer's process sees no NPU.",
    link=_RAY_LINK,
    retired_by=Calls(_GKD_TRAINER, _MAKE_GROUP),
    requires=Calls(_GKD_TRAINER, "create_collective_group"),
    name="make_gkd_group_over_hccl",
)
@recipes.wrap(
    f"{_ONE_STEP_TRAINER}.init_workers",
    uses=(f"{_ONE_STEP_TRAINER}.device_name",),
    why=_GROUP_WHY,
    how=_GROUP_HOW,
    link=_RAY_LINK,
    retired_by=AnyOf(
        Calls(f"{_ONE_STEP_TRAINER}.init_workers", _MAKE_GROUP),
        Calls(f"{_ONE_STEP_TRAINER}.init_workers", f"_{_MAKE_GROUP}"),
    ),
    requires=Calls(f"{_ONE_STEP_TRAINER}.init_workers", "create_collective_group"),
    name="make_one_step_off_group_over_hccl_in_init_workers",
)
def make_group_over_hccl_instead_of_ray(original: Callable[[Any], None], trainer: Any) -> None:
    """Set up the workers with an HCCL group instead of a Ray collective group."""
    with in_place_of_ray() if trainer.device_name == "npu" else nullcontext():
        original(trainer)


@_sync(_GKD_ACTOR, _RAY_LINK, _GKD_WHY, _GKD_HOW, uses=_GKD_USES, name="send_gkd_trainer_weights_over_hccl")
def send_gkd_trainer_weights_over_hccl(worker: Worker) -> None:
    """Send the weights of one trainer to the rollouts over HCCL."""
    sync_megatron(worker, GROUP, int(worker.config.rollout.update_weights_bucket_megabytes) << 20)


@recipes.wrap(
    _GKD_WEIGHTS,
    uses=(
        *(f"{_GKD_ACTOR_CLASS}.{name}" for name in ("bridge", "actor", "actor_model_config", "dtype", "tf_config")),
        "recipe.gkd.megatron_workers:OnPolicyDistillActor.actor_module",
        "verl.models.mcore:get_mcore_weight_converter(hf_config, dtype)",
        "verl.utils.megatron_utils:per_tensor_generator(actor_module, model_config, weight_converter, "
        "transformer_config, layer_name_mapping)",
    ),
    why="With tensor or expert parallelism, the first sync fails with a TypeError about `group_dst`: the recipe "
    "passes it to torch.distributed.gather, but torch_npu's gather does not accept it up to 2.10.",
    how="Without a bridge, verl's own generator gathers the weights, as in the other recipes. That costs no more, "
    "because torch_npu's gather is also an all_gather.",
    link="https://github.com/Ascend/pytorch/blob/v2.7.1-7.1.0/torch_npu/distributed/distributed_c10d.py",
    retired_by=AllOf(Defines(_GKD_WEIGHTS), Not(_GROUP_DST)),
    requires=_GROUP_DST,
    may_skip=True,
)
def gather_gkd_weights_without_group_dst(original: Callable[[Any], Iterable[Weight]], worker: Any) -> Iterable[Weight]:
    """Return the trainer's full weights, under their Hugging Face checkpoint names. The weights are gathered on every
    trainer rank."""
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


@recipes.replace(
    f"{_ONE_STEP_TRAINER}._create_weight_sync_group",
    uses=(
        *(f"{_ONE_STEP_TRAINER}.{name}" for name in ("device_name", "actor_wg", "rollout_wg")),
        "verl.single_controller.base.worker_group:WorkerGroup.workers or "
        "verl.single_controller.ray.base:RayWorkerGroup.workers",
    ),
    why=_GROUP_WHY,
    how=_GROUP_HOW,
    link=_ONE_STEP_LINK,
    retired_by=Calls(f"{_ONE_STEP_TRAINER}._create_weight_sync_group", _MAKE_GROUP),
    requires=Calls(f"{_ONE_STEP_TRAINER}._create_weight_sync_group", "create_collective_group"),
)
def make_one_step_off_group_over_hccl(trainer: Any) -> None:
    """Create the HCCL group of all trainer and rollout workers. Raises GroupError if the trainer's device is not
    npu."""
    if trainer.device_name != "npu":
        raise GroupError(
            subject=f"trainer.device={trainer.device_name}",
            expected="npu",
            found=f"{trainer.device_name}, which needs NCCL, and this installation has no NCCL",
            fix="remove trainer.device",
            override="VERL_NPU_DISABLE=weight_sync",
        )
    workers = trainer.actor_wg.workers + trainer.rollout_wg.workers
    create_collective_group(workers, len(workers), range(len(workers)), "hccl", GROUP)


@_sync(
    f"{_ONE_STEP_FSDP}:DetachSync.sync_rollout_weights",
    _ONE_STEP_LINK,
    uses=_fsdp_uses(*_current_classes(_ONE_STEP_FSDP)),
    name="sync_one_step_off_fsdp_weights_over_hccl",
)
@_sync(
    f"{_ONE_STEP_FSDP}:ActorRolloutRefWorker.sync_rollout_weights",
    _ONE_STEP_LINK,
    uses=_fsdp_uses(*_early_classes(_ONE_STEP_FSDP)),
    name="sync_early_one_step_off_fsdp_weights_over_hccl",
)
def sync_fsdp_weights(worker: Worker) -> None:
    """Sync the weights of one FSDP worker over HCCL."""
    sync_fsdp(worker, GROUP)


@_sync(
    _GKD_ROLLOUT,
    _RAY_LINK,
    _GKD_WHY,
    _GKD_HOW,
    uses=_megatron_uses(*_GKD_WORKERS),
    name="receive_gkd_rollout_weights_over_hccl",
)
@_sync(
    f"{_ONE_STEP_MEGATRON}:DetachSync.sync_rollout_weights",
    _ONE_STEP_LINK,
    uses=_megatron_uses(*_current_classes(_ONE_STEP_MEGATRON)),
    name="sync_one_step_off_megatron_weights_over_hccl",
)
@_sync(
    f"{_ONE_STEP_MEGATRON}:ActorRolloutRefWorker.sync_rollout_weights",
    _ONE_STEP_LINK,
    uses=_megatron_uses(*_early_classes(_ONE_STEP_MEGATRON)),
    name="sync_early_one_step_off_megatron_weights_over_hccl",
)
def sync_megatron_weights(worker: Worker) -> None:
    """Sync the weights of one Megatron worker over HCCL."""
    sync_megatron(worker, GROUP)
