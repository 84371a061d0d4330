"""Patches of `recipe.fully_async_policy`."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from ....registry.source.probe import Defines, Mentions
from ..feature import GROUP, weight_sync
from . import collective as ours
from .workers import sync_fsdp, sync_megatron

_RECIPE = "recipe.fully_async_policy"
_SYNCHRONIZER = f"{_RECIPE}.param_sync"
_FSDP = f"{_RECIPE}.fsdp_workers:DetachNcclSync"
_MEGATRON = f"{_RECIPE}.megatron_worker:DetachNcclSync"

_WHY = "the weights go tensor by tensor through Ray's collectives, which have no HCCL"
_HOW = "they go in buckets over the HCCL group, their names, shapes and dtypes checked on all ranks first"
_ENGINE_WHY = "the recipe's own checkpoint engine broadcasts through Ray's collectives, and asks npu-smi for its NPU"
_ENGINE_HOW = "with checkpoint_engine.enable the same buckets go over the HCCL group, which does what it is for"
_LINK = "https://github.com/volcengine/verl/pull/5043"


@weight_sync.set(
    f"{_SYNCHRONIZER}:collective",
    why="the synchroniser is an actor that sees no NPU and asks Ray's collectives, which have no HCCL, for a group",
    how="what it calls `collective` is a module of ours: the workers meet and make an HCCL group of their own",
    link=_LINK,
    retired_by=Mentions(_SYNCHRONIZER, "npu"),
    requires=Mentions(_SYNCHRONIZER, "create_collective_group"),
)
def synchronizer_collective(rays: ModuleType) -> ModuleType:
    """The module that makes the group."""
    return ours


@weight_sync.replace(
    f"{_FSDP}.sync_rollout_weights",
    why=_WHY,
    how=_HOW,
    link=_LINK,
    retired_by=Mentions(f"{_FSDP}.sync_rollout_weights", "_weight_sync_group"),
    requires=Mentions(f"{_FSDP}.sync_rollout_weights", "collective"),
)
def fully_async_fsdp(worker: Any, sync_group_name: str = GROUP) -> None:
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
def fully_async_megatron(worker: Any, sync_group_name: str = GROUP) -> None:
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
def checkpoint_engine_fsdp(worker: Any, sync_group_name: str = GROUP) -> None:
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
def checkpoint_engine_megatron(worker: Any, sync_group_name: str = GROUP) -> None:
    """Sync the weights of one worker over Megatron."""
    sync_megatron(worker, sync_group_name)


@weight_sync.wrap(
    f"{_FSDP}.init_checkpoint_engine",
    why=_ENGINE_WHY,
    how="it is not made: nothing uses it",
    link=_LINK,
    retired_by=Mentions(f"{_FSDP}.sync_rollout_weights_by_checkpoint", "_weight_sync_group"),
    requires=Defines(f"{_FSDP}.init_checkpoint_engine"),
)
def no_checkpoint_engine_fsdp(
    original: Callable[..., None], worker: Any, rank_offset: int, actor_num: int, rollout_num: int
) -> None:
    """Leave the engine out."""


@weight_sync.wrap(
    f"{_MEGATRON}.init_checkpoint_engine",
    why=_ENGINE_WHY,
    how="it is not made: nothing uses it",
    link=_LINK,
    retired_by=Mentions(f"{_MEGATRON}.sync_rollout_weights_by_checkpoint", "_weight_sync_group"),
    requires=Defines(f"{_MEGATRON}.init_checkpoint_engine"),
)
def no_checkpoint_engine_megatron(
    original: Callable[..., None], worker: Any, rank_offset: int, actor_num: int, rollout_num: int
) -> None:
    """Leave the engine out."""
