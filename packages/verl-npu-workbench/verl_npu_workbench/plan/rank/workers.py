"""The workers of one rank, their batches, and their rollout, for both generations of verl's workers: before v0.8, and
from v0.8 on."""

from __future__ import annotations

import asyncio
import importlib.util
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from virtual_ascend import ledger

from ...jobs.keys import ROLES
from ..job import Holder, Phase, Picture, RankJob
from .megatron import not_shown, prepare

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from torch import Tensor

TOKEN = 5
"""The id of an arbitrary token. It is not one of the first few, which mark padding and ends."""

_SCORES = ("token_level_scores", "token_level_rewards")
_OF_ANSWERS = ("old_log_probs", "rollout_log_probs", "ref_log_prob", "values", "advantages", "returns", *_SCORES)


def batch(job: RankJob, training: bool) -> dict[str, Any]:
    """Return the batch that verl's trainer passes to the training phases of a step. If `training` is false, return the
    batch for the other phases. The tensors are on the host.

    `input_ids`, `attention_mask`, `position_ids` [sequences, prompt + response]; `prompts` [sequences, prompt]; all
    others [sequences, response]. Prompts are padded on the left, answers on the right. Source:
    verl/trainer/ppo/ray_trainer.py, `fit`. If the model supports pictures, `position_ids` has the shape [sequences, 4,
    prompt + response]. If the prompts contain pictures, the pictures come directly before the answer, and
    `multi_modal_inputs` contains the patches of each sequence.
    """
    import torch

    prompt, response = job.prompt, job.response
    measured, sequences = (job.lengths, job.sequences) if training else (job.scored_lengths, job.scored)
    lengths = torch.tensor(measured or [(prompt, response)] * sequences)
    if job.picture is not None and bool((lengths == lengths[0]).all()):
        # If all sequences of a micro-batch had one length, which is rare in real batches, torch would confuse position
        # rows with tokens.
        lengths[1::2, 1] -= 1
    place = torch.arange(prompt + response)
    mask = (place >= prompt - lengths[:, :1]) & (place < prompt + lengths[:, 1:])
    ids = mask.long() * TOKEN
    each = torch.zeros(len(lengths), response)
    # Like verl.utils.model.compute_position_id_with_mask.
    positions = (mask.long().cumsum(dim=-1) - 1).clamp(min=0)
    pictures = {}
    if job.picture is not None:
        positions = positions.unsqueeze(1).repeat(1, job.picture.positions, 1)
    if job.picture is not None and job.picture.tokens:
        ids[:, prompt - job.picture.tokens : prompt] = job.picture.token
        pictures["multi_modal_inputs"] = _pictures(job.picture, len(lengths))
    return {
        "input_ids": ids,
        "attention_mask": mask.long(),
        "position_ids": positions,
        "prompts": ids[:, :prompt],
        "responses": ids[:, prompt:],
        "response_mask": mask[:, prompt:].long(),
        **{name: each.clone() for name in _OF_ANSWERS},
        **pictures,
    }


def _pictures(picture: Picture, sequences: int) -> Any:
    """Return one image per sequence: `pixel_values` [patches, values per patch] and `image_grid_thw` [1, 3]."""
    import numpy
    import torch

    high = math.isqrt(picture.patches)
    found = numpy.empty(sequences, dtype=object)
    for place in range(sequences):
        found[place] = {
            "pixel_values": torch.zeros(picture.tokens * picture.patches, picture.width),
            "image_grid_thw": torch.tensor([[1, high, high * picture.tokens]]),
        }
    return found


def routed_experts(roles: DictConfig, sequences: int, tokens: int) -> dict[str, Tensor]:
    """Return the experts of each token as int16 with shape [sequences, tokens, layers, experts of a token], or an
    empty mapping if the actor does not replay routes.

    The routes come from the rollout (mode R3) or from the log-probabilities (mode R2). Source:
    verl/experimental/agent_loop/agent_loop.py and verl/utils/megatron/router_replay_utils.py.
    """
    sections = (roles.actor, roles.actor.get("megatron") or {})
    modes = [(section.get("router_replay") or {}).get("mode") for section in sections]
    if not any(mode in ("R2", "R3") for mode in modes):
        return {}
    import torch
    from transformers import AutoConfig

    model = AutoConfig.from_pretrained(roles.model.path).get_text_config()
    everyone = torch.arange(tokens * model.num_experts_per_tok) % _experts_of(model)
    routes = everyone.to(torch.int16).view(1, tokens, 1, -1)
    return {"routed_experts": routes.repeat(sequences, 1, model.num_hidden_layers, 1)}


def _experts_of(model: Any) -> int:
    names = ("num_experts", "n_routed_experts", "num_local_experts")
    return int(next(getattr(model, name) for name in names if hasattr(model, name)))


class Workers(ABC):
    """The roles of one rank, created and called in the same way as in a verl trainer."""

    _actor: Any
    _critic: Any
    _reference: Any

    def __init__(self, config: DictConfig, job: RankJob) -> None:
        self._config, self._roles, self._job = config, config[ROLES], job
        self.not_shown = not_shown(self._roles)
        """The phases that one rank cannot run alone, each with the reason."""
        prepare(self._roles)

    @abstractmethod
    def load(self) -> None:
        """Create the models and optimizers."""

    @abstractmethod
    def step(self) -> Mapping[Phase, Callable[[], object]]:
        """Return a function for each phase of a step, in order."""

    @abstractmethod
    def hand_over(self) -> None:
        """Pass the weights to the rollout, as at the end of a step."""

    def checkpoint(self, folder: str) -> None:
        """Save a checkpoint in the same way as the trainer."""
        if self._critic is not None:
            self._critic.save_checkpoint(f"{folder}/critic", global_step=1)
        self._actor.save_checkpoint(f"{folder}/actor", global_step=1)

    def _batch(self, training: bool) -> Any:
        from verl import DataProto

        job, given = self._job, batch(self._job, training)
        data = DataProto.from_single_dict(given | routed_experts(self._roles, *given["input_ids"].shape))
        data.meta_info = {
            "temperature": self._roles.rollout.temperature,
            "multi_turn": False,
            "global_token_num": [job.prompt + job.response] * (len(data) * job.world),
        }
        return data


class SleepingRollout:
    """A stand-in for a rollout engine. It allocates memory for its weights when it wakes up, and discards the weights
    that it receives.

    It does not allocate the key-value cache. In a real engine, the cache gets the memory that is left
    (`verl_npu_workbench.plan.rollout`).
    """

    sleep_level = 1

    def __init__(self, weights: int) -> None:
        self._bytes = weights
        self._weights: Tensor | None = None

    async def resume(self, tags: Sequence[str]) -> None:
        """Allocate memory for the weights, as an engine does when it wakes up."""
        import torch

        if "weights" in tags and self._bytes:
            self._weights = torch.empty(self._bytes, dtype=torch.int8, device="npu")
            ledger.mark(self._weights.untyped_storage().data_ptr(), Holder.ENGINE.number)

    async def release(self) -> None:
        """Free the memory of the weights."""
        self._weights = None

    async def update_weights(self, weights: Iterable[tuple[str, Tensor]], **_: object) -> None:
        """Read the tensors one by one, like an engine that copies each of them."""
        for _name, _weight in weights:
            pass


class Buckets:
    """A stand-in for a checkpoint engine. It allocates its buffers and reads the weights."""

    def __init__(self, size: int) -> None:
        import torch

        self._buffers: Tensor = torch.empty(size, dtype=torch.int8, device="npu")
        ledger.mark(self._buffers.untyped_storage().data_ptr(), Holder.MESSAGES.number)

    async def send_weights(self, weights: Iterable[tuple[str, Tensor]], **_: object) -> None:
        """Read the tensors one by one. Ranks that send nothing also take part in gathering them."""
        for _name, _weight in weights:
            pass


class LegacyWorkers(Workers):
    """The roles of one rank, created and called in the same way as in verl/trainer/ppo/ray_trainer.py of v0.6.1.

    With `builds_rollout`, the actor builds its side of the rollout; otherwise the actor has no rollout.
    """

    def __init__(self, config: DictConfig, job: RankJob, builds_rollout: bool = False) -> None:
        if config[ROLES].actor.strategy == "megatron":
            from verl.workers.megatron_workers import ActorRolloutRefWorker, CriticWorker
        else:
            from verl.workers.fsdp_workers import ActorRolloutRefWorker, CriticWorker
        super().__init__(config, job)
        if not hasattr(ActorRolloutRefWorker, "rollout_mode"):
            self.not_shown[Phase.WEIGHT_SYNC] = "the workers of this verl revision sync weights inside the engine"
        # The critic first, like the trainer.
        self._critic = CriticWorker(config=config.critic) if job.critic else None
        self._reference = ActorRolloutRefWorker(config=self._roles, role="ref") if job.reference else None
        self._actor = ActorRolloutRefWorker(config=self._roles, role="actor_rollout")
        if not builds_rollout:
            # The engine's memory is computed by a formula, and its phase is not run.
            self._actor._build_rollout = no_engine

    def load(self) -> None:
        for worker in (self._critic, self._reference, self._actor):
            if worker is not None:
                worker.init_model()

    def step(self) -> Mapping[Phase, Callable[[], object]]:
        phases: dict[Phase, Callable[[], object]] = {
            Phase.LOG_PROB: lambda: self._actor.compute_log_prob(self._batch(training=False)),
        }
        if self._reference is not None:
            phases[Phase.REFERENCE] = lambda: self._reference.compute_ref_log_prob(self._batch(training=False))
        if self._critic is not None:
            phases[Phase.VALUES] = lambda: self._critic.compute_values(self._batch(training=False))
            phases[Phase.UPDATE_CRITIC] = lambda: self._critic.update_critic(self._batch(training=True))
        phases[Phase.UPDATE_ACTOR] = lambda: self._actor.update_actor(self._batch(training=True))
        return phases

    def wrap_rollout(self, build: Callable[..., object]) -> None:
        """Replace the function that builds the actor's side of the rollout. The replacement, `build`, receives the
        original function as an argument."""
        self._actor._build_rollout = partial(build, self._actor._build_rollout)

    def hand_over(self) -> None:
        """Pass the weights to the rollout, as `rollout_mode` does."""
        import torch

        actor = self._actor
        actor.rollout = SleepingRollout(self._job.rollout_weights)
        actor.base_sync_done, actor.layered_summon = True, False
        actor.gen_random_states = actor.torch_random_states = torch.npu.get_rng_state()
        _give_out_shards(getattr(actor, "actor_module_fsdp", None))
        asyncio.run(actor.rollout_mode())
        asyncio.run(actor.rollout.release())


def no_engine(*_: object, **__: object) -> tuple[SimpleNamespace, None]:
    """Stand in for the upstream function that starts an engine. At verl 796871d7, that function also returns the
    engine's weight-sync manager."""
    return SimpleNamespace(), None


def _give_out_shards(module: Any) -> None:
    """Make FSDP1 return its state dict in shards. verl's `_build_rollout` does the same, but a plan does not call
    it."""
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardedStateDictConfig, StateDictType

    if isinstance(module, FullyShardedDataParallel):
        FullyShardedDataParallel.set_state_dict_type(
            module, state_dict_type=StateDictType.SHARDED_STATE_DICT, state_dict_config=ShardedStateDictConfig()
        )


class EngineWorkers(Workers):
    """The roles of one rank, created and called in the same way as in verl/trainer/ppo/ray_trainer.py of v0.9.

    With `builds_rollout`, the actor builds its side of the rollout; otherwise the actor has no rollout.
    """

    def __init__(self, config: DictConfig, job: RankJob, builds_rollout: bool = False) -> None:
        import verl.workers.engine  # noqa: F401 - imports MindSpeed before Megatron and its bridges
        from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

        super().__init__(config, job)
        self._critic = TrainingWorker(config=_critic_of(config)) if job.critic else None
        self._reference = ActorRolloutRefWorker(config=self._roles, role="ref") if job.reference else None
        self._actor = ActorRolloutRefWorker(config=self._roles, role="actor_rollout" if builds_rollout else "actor")

    def load(self) -> None:
        if self._critic is not None:
            from verl.utils.config import omega_conf_to_dataclass
            from verl.workers.utils.losses import value_loss

            self._critic.reset()
            self._critic.set_loss_fn(partial(value_loss, config=omega_conf_to_dataclass(self._config.critic)))
        if self._reference is not None:
            self._reference.init_model()
        self._actor.init_model()

    def step(self) -> Mapping[Phase, Callable[[], object]]:
        actor = self._roles.actor
        phases: dict[Phase, Callable[[], object]] = {
            Phase.LOG_PROB: lambda: self._actor.compute_log_prob(
                self._data(False, calculate_entropy=True, calculate_sum_pi_squared=False, compute_loss=False)
            )
        }
        if self._reference is not None:
            phases[Phase.REFERENCE] = lambda: self._reference.compute_ref_log_prob(
                self._data(False, calculate_entropy=False, compute_loss=False)
            )
        if self._critic is not None:
            phases[Phase.VALUES] = lambda: self._critic.infer_batch(self._data(False, compute_loss=False))
            phases[Phase.UPDATE_CRITIC] = lambda: self._critic.train_mini_batch(
                self._training_data(self._config.critic)
            )
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
        """Pass the weights to the job's servers, to the engine that shares this worker's NPU, or to both, as
        `update_weights` does."""
        worker = self._actor
        if self._job.buckets:
            worker.checkpoint_engine = Buckets(self._job.buckets)
            asyncio.run(worker.update_weights(mode="nccl"))
            del worker.checkpoint_engine
        if self._job.buckets and not self._job.rollout_weights:
            return
        worker.rollout = SleepingRollout(self._job.rollout_weights)
        worker.base_sync_done, worker.layered_summon = True, False
        worker.peft_merge = bool(self._roles.model.get("lora", {}).get("merge", False))
        asyncio.run(worker.update_weights(mode="naive"))
        asyncio.run(worker.rollout.release())

    def _data(self, training: bool, **said: object) -> Any:
        from verl.utils import tensordict_utils
        from verl.workers.utils.padding import left_right_2_no_padding

        packed = left_right_2_no_padding(self._batch(training).to_tensordict())
        tensordict_utils.assign_non_tensor(packed, **said)
        return packed

    def _training_data(self, role: DictConfig, **said: object) -> Any:
        size = role.ppo_mini_batch_size * self._roles.rollout.n
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
    # v0.7.1 has a second model beside the one whose section has the engine's settings.
    model: Any = getattr(critic, "model_config", critic.model)
    engine = critic.engine if model is critic.model else critic.model.fsdp_config
    engine.infer_max_token_len_per_gpu = critic.ppo_infer_max_token_len_per_gpu
    engine.max_token_len_per_gpu = critic.ppo_max_token_len_per_gpu
    return TrainingWorkerConfig(
        model_type="value_model",
        model_config=model,
        engine_config=engine,
        optimizer_config=critic.optim,
        checkpoint_config=critic.checkpoint,
    )


def workers_of(config: DictConfig, job: RankJob, builds_rollout: bool = False) -> Workers:
    """Create the workers that match the imported revision of verl."""
    # v0.7 has both; "auto" are the old ones there.
    legacy = importlib.util.find_spec("verl.workers.fsdp_workers") is not None
    if legacy and config.trainer.get("use_legacy_worker_impl", "auto") != "disable":
        return LegacyWorkers(config, job, builds_rollout)
    return EngineWorkers(config, job, builds_rollout)


def configuration(job: RankJob) -> DictConfig:
    """Return the configuration as a trainer gets it from Hydra, with the plan's changes."""
    from omegaconf import OmegaConf

    config = OmegaConf.create(dict(job.config))
    for key, value in job.changes.items():
        OmegaConf.update(config, key, value, force_add=True)
    OmegaConf.resolve(config)
    OmegaConf.set_struct(config, True)
    return config
