"""The worker's side of verl's server interface: it sends the trainer's weights to the server of its replica."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import TYPE_CHECKING

import ray
import torch
from verl.workers.rollout.base import BaseRollout

from .engine import ModelSettings, RolloutSettings, adapter_of, checker_of
from .layout import place

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

BUCKET_BYTES = 256 << 20


def server_name(replica_rank: int) -> str:
    """Return the name of a replica's server actor."""
    return f"virtual_server_{replica_rank}"


class VirtualServerAdapter(BaseRollout):  # type: ignore[misc]  # verl carries no types
    """The worker's adapter for the server. The first rank of a replica sends the weights to the server. The other
    ranks only check the weights."""

    def __init__(
        self,
        config: RolloutSettings,
        model_config: ModelSettings,
        device_mesh: DeviceMesh,
        replica_rank: int = -1,
        *args: object,
        **kwargs: object,
    ) -> None:
        super().__init__(config, model_config, device_mesh)
        own = place(self.config, int(os.environ["RANK"]))
        self.replica_rank = own.replica if replica_rank == -1 else replica_rank
        self.is_leader_rank = own.leads
        self._weights = None if own.leads else checker_of(self.config, self.model_config)
        # Base weights survive the server's sleep at this level, so verl sends them only once for LoRA adapters.
        self.sleep_level = 1

    async def resume(self, tags: list[str]) -> None:
        """Do nothing, because this engine never frees its memory."""

    async def release(self) -> None:
        """Do nothing, because the server releases its weights in its own `sleep`."""

    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]] | AsyncIterable[tuple[str, torch.Tensor]],
        global_steps: int | None = None,
        peft_config: object = None,
        base_sync_done: bool = False,
        **kwargs: object,
    ) -> None:
        """Send all weights, or only the weights of a LoRA adapter. Raises RolloutError if the weights do not match the
        model."""
        adapter = adapter_of(peft_config) if peft_config and base_sync_done else None
        if self._weights is not None:
            parts: list[tuple[str, torch.Tensor]] = []
            async for bucket in buckets(weights):
                if adapter is None:
                    self._weights.take(bucket)
                else:
                    parts += bucket
            self._weights.complete(adapter, parts)
            return
        server = ray.get_actor(server_name(self.replica_rank))
        async for bucket in buckets(weights):
            await server.take_weights.remote(bucket, adapter)
        await server.complete_weights.remote(global_steps, adapter)


async def buckets(
    weights: Iterable[tuple[str, torch.Tensor]] | AsyncIterable[tuple[str, torch.Tensor]],
) -> AsyncIterator[list[tuple[str, torch.Tensor]]]:
    """Yield the weights in parts that are small enough to send. A checkpoint engine delivers the weights one by
    one."""
    bucket: list[tuple[str, torch.Tensor]] = []
    size = 0
    async for name, value in _one_by_one(weights):
        # Detach, because a parameter would be sent with its gradient. Copy, because a checkpoint engine writes the
        # next weight into the same memory.
        bucket.append((name, value.detach().to("cpu", copy=True)))
        size += value.nbytes
        if size >= BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket


async def _one_by_one(
    weights: Iterable[tuple[str, torch.Tensor]] | AsyncIterable[tuple[str, torch.Tensor]],
) -> AsyncIterator[tuple[str, torch.Tensor]]:
    if isinstance(weights, AsyncIterable):
        async for pair in weights:
            yield pair
    else:
        for pair in weights:
            yield pair
