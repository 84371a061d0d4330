"""The workers of verl from v0.8 on: `verl.workers.engine_workers`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ..job import Job
from ..phase import Phase
from .batch import batch
from .megatron import not_shown, prepare
from .workers import SleepingRollout

if TYPE_CHECKING:
    from omegaconf import DictConfig

__all__ = ["EngineWorkers"]


class EngineWorkers:
    """The roles of one rank, as verl/trainer/ppo/ray_trainer.py of v0.9 makes and calls them."""

    def __init__(self, config: DictConfig, job: Job) -> None:
        import verl.workers.engine  # noqa: F401 - MindSpeed comes before Megatron and its bridges
        from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

        self._config, self._job = config, job
        self.not_shown = not_shown(config)
        prepare(config)
        self._critic: Any = TrainingWorker(config=_critic_of(config)) if job.critic else None
        self._reference: Any = None
        if job.reference:
            self._reference = ActorRolloutRefWorker(config=config.actor_rollout_ref, role="ref")
        self._actor: Any = ActorRolloutRefWorker(config=config.actor_rollout_ref, role="actor")

    def load(self) -> None:
        """Make the models and optimizers."""
        if self._critic is not None:
            from verl.utils.config import omega_conf_to_dataclass
            from verl.workers.utils.losses import value_loss

            self._critic.reset()
            self._critic.set_loss_fn(partial(value_loss, config=omega_conf_to_dataclass(self._config.critic)))
        if self._reference is not None:
            self._reference.init_model()
        self._actor.init_model()

    def step(self) -> Mapping[Phase, Callable[[], object]]:
        """Return the phases of a step, in its order, as what does them."""
        actor = self._config.actor_rollout_ref.actor
        phases: dict[Phase, Callable[[], object]] = {
            Phase.LOG_PROB: lambda: self._actor.compute_log_prob(
                self._data(False, calculate_entropy=True, calculate_sum_pi_squared=False, compute_loss=False)
            )
        }
        if self._reference is not None:
            reference = self._reference
            phases[Phase.REFERENCE] = lambda: reference.compute_ref_log_prob(
                self._data(False, calculate_entropy=False, compute_loss=False)
            )
        if self._critic is not None:
            critic = self._critic
            phases[Phase.VALUES] = lambda: critic.infer_batch(self._data(False, compute_loss=False))
            phases[Phase.UPDATE_CRITIC] = lambda: critic.train_mini_batch(self._training_data(self._config.critic))
        entropy = bool(actor.get("calculate_entropy")) or actor.entropy_coeff != 0.0
        phases[Phase.UPDATE_ACTOR] = lambda: self._actor.update_actor(
            self._training_data(
                actor,
                calculate_entropy=entropy,
                distillation_use_topk=False,
                distillation_only=False,
                compute_loss=True,
            )
        )
        return phases

    def hand_over(self) -> None:
        """Give the weights to the rollout, as `update_weights` does."""
        worker = self._actor
        worker.rollout = SleepingRollout(self._job.rollout_weights)
        worker.base_sync_done, worker.layered_summon = True, False
        worker.peft_merge = bool(self._config.actor_rollout_ref.model.get("lora", {}).get("merge", False))
        asyncio.run(worker.update_weights(mode="naive"))
        asyncio.run(worker.rollout.release())

    def checkpoint(self, folder: str) -> None:
        """Save as the trainer does."""
        if self._critic is not None:
            self._critic.save_checkpoint(f"{folder}/critic", global_step=1)
        self._actor.save_checkpoint(f"{folder}/actor", global_step=1)

    def _data(self, training: bool, **said: object) -> Any:
        from verl import DataProto
        from verl.utils import tensordict_utils
        from verl.workers.utils.padding import left_right_2_no_padding

        job, rollout = self._job, self._config.actor_rollout_ref.rollout
        data = DataProto.from_single_dict(batch(job, training))
        data.meta_info = {
            "temperature": rollout.temperature,
            "multi_turn": False,
            "global_token_num": [job.prompt + job.response] * (len(data) * job.world),
        }
        packed = left_right_2_no_padding(data.to_tensordict())
        tensordict_utils.assign_non_tensor(packed, **said)
        return packed

    def _training_data(self, role: DictConfig, **said: object) -> Any:
        size = role.ppo_mini_batch_size * self._config.actor_rollout_ref.rollout.n
        return self._data(
            True,
            global_batch_size=size,
            mini_batch_size=size,
            epochs=role.ppo_epochs,
            seed=role.get("data_loader_seed", 1),
            dataloader_kwargs={"shuffle": role.shuffle},
            **said,
        )


def _critic_of(config: DictConfig) -> Any:
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config import CriticConfig
    from verl.workers.engine_workers import TrainingWorkerConfig

    critic: CriticConfig = omega_conf_to_dataclass(config.critic)
    engine = critic.engine
    engine.infer_max_token_len_per_gpu = critic.ppo_infer_max_token_len_per_gpu
    engine.max_token_len_per_gpu = critic.ppo_max_token_len_per_gpu
    return TrainingWorkerConfig(
        model_type="value_model",
        model_config=critic.model,
        engine_config=engine,
        optimizer_config=critic.optim,
        checkpoint_config=critic.checkpoint,
    )
