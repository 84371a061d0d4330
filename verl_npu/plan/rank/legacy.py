"""The workers of verl before v0.8: `verl.workers.fsdp_workers` and `verl.workers.megatron_workers`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..job import Job
from ..phase import Phase
from .batch import batch
from .megatron import not_shown, prepare
from .workers import SleepingRollout

if TYPE_CHECKING:
    from omegaconf import DictConfig

__all__ = ["LegacyWorkers"]


class LegacyWorkers:
    """The roles of one rank, as verl/trainer/ppo/ray_trainer.py of v0.6.1 makes and calls them."""

    def __init__(self, config: DictConfig, job: Job) -> None:
        if config.actor_rollout_ref.actor.strategy == "megatron":
            from verl.workers.megatron_workers import ActorRolloutRefWorker, CriticWorker
        else:
            from verl.workers.fsdp_workers import ActorRolloutRefWorker, CriticWorker
        prepare(config)
        self._config, self._job = config, job
        self.not_shown = _not_shown(config)
        # The critic first, as the trainer does.
        self._critic = CriticWorker(config=config.critic) if job.critic else None
        self._reference = ActorRolloutRefWorker(config=config.actor_rollout_ref, role="ref") if job.reference else None
        self._actor = ActorRolloutRefWorker(config=config.actor_rollout_ref, role="actor_rollout")
        # The engine's memory is counted by rule, and its phase is not run.
        self._actor._build_rollout = _no_engine

    def load(self) -> None:
        """Make the models and optimizers."""
        for worker in (self._critic, self._reference, self._actor):
            if worker is not None:
                worker.init_model()

    def step(self) -> Mapping[Phase, Callable[[], object]]:
        """Return the phases of a step, in its order, as what does them."""
        phases: dict[Phase, Callable[[], object]] = {
            Phase.LOG_PROB: lambda: self._actor.compute_log_prob(self._data(training=False)),
        }
        if self._reference is not None:
            reference = self._reference
            phases[Phase.REFERENCE] = lambda: reference.compute_ref_log_prob(self._data(training=False))
        if self._critic is not None:
            critic = self._critic
            phases[Phase.VALUES] = lambda: critic.compute_values(self._data(training=False))
            phases[Phase.UPDATE_CRITIC] = lambda: critic.update_critic(self._data(training=True))
        phases[Phase.UPDATE_ACTOR] = lambda: self._actor.update_actor(self._data(training=True))
        return phases

    def hand_over(self) -> None:
        """Give the weights to the rollout, as `rollout_mode` does."""
        import torch

        actor = self._actor
        actor.rollout = SleepingRollout(self._job.rollout_weights)
        actor.base_sync_done, actor.layered_summon = True, False
        actor.gen_random_states = actor.torch_random_states = torch.npu.get_rng_state()
        _give_out_shards(getattr(actor, "actor_module_fsdp", None))
        asyncio.run(actor.rollout_mode())
        asyncio.run(actor.rollout.release())

    def checkpoint(self, folder: str) -> None:
        """Save as the trainer does."""
        if self._critic is not None:
            self._critic.save_checkpoint(f"{folder}/critic", global_step=1)
        self._actor.save_checkpoint(f"{folder}/actor", global_step=1)

    def _data(self, training: bool) -> Any:
        from verl import DataProto

        job = self._job
        data = DataProto.from_single_dict(batch(job, training))
        length = job.prompt + job.response
        data.meta_info = {
            "temperature": self._config.actor_rollout_ref.rollout.temperature,
            "multi_turn": False,
            "global_token_num": [length] * (len(data) * job.world),
        }
        return data


def _not_shown(config: DictConfig) -> dict[Phase, str]:
    found = not_shown(config)
    from verl.workers.fsdp_workers import ActorRolloutRefWorker

    if not hasattr(ActorRolloutRefWorker, "rollout_mode"):
        found[Phase.WEIGHT_SYNC] = "this revision's workers do it together with the engine"
    return found


def _no_engine(*_: object, **__: object) -> tuple[None, None]:
    """In place of what starts an engine, and at 796871d7 returns it with what hands it the weights."""
    return None, None


def _give_out_shards(module: Any) -> None:
    """Have FSDP1 give out its weights in shards, as `_build_rollout` does, which no rank of a plan calls."""
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardedStateDictConfig, StateDictType

    if isinstance(module, FullyShardedDataParallel):
        FullyShardedDataParallel.set_state_dict_type(
            module, state_dict_type=StateDictType.SHARDED_STATE_DICT, state_dict_config=ShardedStateDictConfig()
        )
