"""A replica of verl's server contract (async at v0.6.1, always from ccd7d934 on): one server for all its ranks."""

from __future__ import annotations

from typing import Any

import ray
from verl.workers.rollout.replica import RolloutMode, RolloutReplica

from ...errors import RolloutError
from .layout import Place
from .server import VirtualServer
from .worker import server_name

__all__ = ["VirtualReplica"]


class VirtualReplica(RolloutReplica):  # type: ignore[misc]  # verl carries no types
    """One server on the NPU of the replica's first worker: one that trains, or one that only receives weights."""

    async def launch_servers(self) -> None:
        """Start the server beside its worker. Raises RolloutError for a mode without one."""
        if self.rollout_mode is RolloutMode.COLOCATED or getattr(self, "is_reward_model", False):
            raise self._alone()
        first, *_ = self.workers
        node, npu = await first.__ray_call__.remote(_place)
        # Until v0.7.0 the server tells its workers when to hand over weights; later the trainer does.
        wakes = [worker for worker in self.workers if hasattr(worker, "wake_up")]
        server = (
            ray.remote(VirtualServer)
            .options(
                name=server_name(self.replica_rank),
                scheduling_strategy=ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False),
                max_concurrency=1000,
            )
            .remote(
                self.config,
                self.model_config,
                npu,
                wakes,
                Place(self.replica_rank, 0, self.world_size),
                self.rollout_mode is RolloutMode.HYBRID,
            )
        )
        self.servers = [server]
        self._server_handle = server
        self._server_address = server_name(self.replica_rank)
        await server.clear_kv_cache.remote()  # it is up, or its error is raised here

    def get_ray_class_with_init_args(self) -> Any:
        """Workers that receive weights for a server without a trainer, from v0.7.1 on; before, raises RolloutError."""
        base = RolloutReplica.get_ray_class_with_init_args
        if getattr(base, "__isabstractmethod__", False):
            raise self._alone()
        return base(self)

    def _alone(self) -> RolloutError:
        return RolloutError(
            subject="the mode of the virtual rollout engine",
            expected="that it shares its NPU with a trainer's worker, or from verl 0.7.1 on stands alone",
            found=str(self.rollout_mode) + (" for a reward model" if getattr(self, "is_reward_model", False) else ""),
            fix="use a vLLM for the CPU for this one",
        )

    async def abort_all_requests(self, *args: object, **kwargs: object) -> None:
        """Requests are answered whole: there is none to abort between two batches."""

    async def resume_generation(self) -> None:
        """Nothing was stopped."""


def _place(worker: object) -> tuple[str, str]:
    context = ray.get_runtime_context()
    return context.get_node_id(), str(context.get_accelerator_ids()["NPU"][0])
