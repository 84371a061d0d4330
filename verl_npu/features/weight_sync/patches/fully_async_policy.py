"""Patches of `recipe.fully_async_policy`."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from ....registry.source.probe import Defines, Mentions
from ..feature import GROUP, weight_sync
from . import collective as over_hccl
from .protocols import Worker
from .workers import sync_fsdp, sync_megatron

_RECIPE = "recipe.fully_async_policy"
_SYNCHRONIZER = f"{_RECIPE}.param_sync"
_FSDP = f"{_RECIPE}.fsdp_workers:DetachNcclSync"
_MEGATRON = f"{_RECIPE}.megatron_worker:DetachNcclSync"

_WHY = "The weights are broadcast tensor by tensor through Ray's collectives, which have no HCCL."
_HOW = "The weights go over the HCCL group in buckets, after all ranks have agreed on names, shapes and dtypes."
_ENGINE_WHY = "The recipe's own checkpoint engine broadcasts through Ray's collectives, which have no HCCL, and runs "
_ENGINE_WHY += "npu-smi to find its NPU."
_ENGINE_HOW = "With checkpoint_engine.enable the weights go over the HCCL group in buckets, as they do without it."
_SKIP_HOW = "The checkpoint engine is not created, because nothing uses it."
_LINK = "https://github.com/volcengine/verl/pull/5043"


@weight_sync.set(
    f"{_SYNCHRONIZER}:collective",
    why="The synchronizer is an actor that sees no NPU and makes the group of Ray's collectives, which have no HCCL. "
    "The job ends with `RuntimeError: NCCL is not available`.",
    how="The name `collective` in its module becomes a module of verl-npu, in which the workers meet at a store that "
    "rank 0 serves and make an HCCL group of their own.",
    link=_LINK,
    retired_by=Mentions(_SYNCHRONIZER, "npu"),
    requires=Mentions(_SYNCHRONIZER, "create_collective_group"),
)
def make_fully_async_group_over_hccl(rays: ModuleType) -> ModuleType:
    """Return the module that makes the group."""
    return over_hccl


@weight_sync.replace(
    f"{_FSDP}.sync_rollout_weights",
    why=_WHY,
    how=_HOW,
    link=_LINK,
    retired_by=Mentions(f"{_FSDP}.sync_rollout_weights", "_weight_sync_group"),
    requires=Mentions(f"{_FSDP}.sync_rollout_weights", "collective"),
)
def sync_fully_async_fsdp_weights_over_hccl(worker: Worker, sync_group_name: str = GROUP) -> None:
    """Sync the weights of one worker over FSDP."""
    sync_fsdp(worker, sync_group_name)


@weight_sync.replace(
    f"{_MEGATRON}.sync_rollout_weights",
    why=_WHY,
    how=_HOW,
    link=_LINK,
    retired_by=Mentions(f"{_MEGATRON}.sync_rollout_weights", "_weight_sync_group"),
    requires=Mentions(f"{_MEGATRON}.sync_rollout_weights", "collective"),
)
def sync_fully_async_megatron_weights_over_hccl(worker: Worker, sync_group_name: str = GROUP) -> None:
    """Sync the weights of one worker over Megatron."""
    sync_megatron(worker, sync_group_name)


@weight_sync.replace(
    f"{_FSDP}.sync_rollout_weights_by_checkpoint",
    why=_ENGINE_WHY,
    how=_ENGINE_HOW,
    link=_LINK,
    retired_by=Mentions(f"{_FSDP}.sync_rollout_weights_by_checkpoint", "_weight_sync_group"),
    requires=Defines(f"{_FSDP}.sync_rollout_weights_by_checkpoint"),
)
def bypass_fully_async_fsdp_checkpoint_engine(worker: Worker, sync_group_name: str = GROUP) -> None:
    """Sync the weights of one worker over FSDP."""
    sync_fsdp(worker, sync_group_name)


@weight_sync.replace(
    f"{_MEGATRON}.sync_rollout_weights_by_checkpoint",
    why=_ENGINE_WHY,
    how=_ENGINE_HOW,
    link=_LINK,
    retired_by=Mentions(f"{_MEGATRON}.sync_rollout_weights_by_checkpoint", "_weight_sync_group"),
    requires=Defines(f"{_MEGATRON}.sync_rollout_weights_by_checkpoint"),
)
def bypass_fully_async_megatron_checkpoint_engine(worker: Worker, sync_group_name: str = GROUP) -> None:
    """Sync the weights of one worker over Megatron."""
    sync_megatron(worker, sync_group_name)


@weight_sync.wrap(
    f"{_FSDP}.init_checkpoint_engine",
    why=_ENGINE_WHY,
    how=_SKIP_HOW,
    link=_LINK,
    retired_by=Mentions(f"{_FSDP}.sync_rollout_weights_by_checkpoint", "_weight_sync_group"),
    requires=Defines(f"{_FSDP}.init_checkpoint_engine"),
)
def skip_fully_async_fsdp_checkpoint_engine_setup(
    original: Callable[..., None], worker: Worker, rank_offset: int, actor_num: int, rollout_num: int
) -> None:
    """Leave the engine out."""


@weight_sync.wrap(
    f"{_MEGATRON}.init_checkpoint_engine",
    why=_ENGINE_WHY,
    how=_SKIP_HOW,
    link=_LINK,
    retired_by=Mentions(f"{_MEGATRON}.sync_rollout_weights_by_checkpoint", "_weight_sync_group"),
    requires=Defines(f"{_MEGATRON}.init_checkpoint_engine"),
)
def skip_fully_async_megatron_checkpoint_engine_setup(
    original: Callable[..., None], worker: Worker, rank_offset: int, actor_num: int, rollout_num: int
) -> None:
    """Leave the engine out."""
