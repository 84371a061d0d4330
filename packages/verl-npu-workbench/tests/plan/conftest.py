"""Plans that need no run: settings, a share, and the answers of ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from verl_npu_workbench.jobs.settings import Settings
from verl_npu_workbench.jobs.trainer import Trainer
from verl_npu_workbench.plan.fine_tuning import names_of, tuning_share
from verl_npu_workbench.plan.hardware import GIB, HARDWARE
from verl_npu_workbench.plan.job import Holder, Outcome, PhaseCost, RankJob
from verl_npu_workbench.plan.model import Model
from verl_npu_workbench.plan.planning import Planned
from verl_npu_workbench.plan.rollout import Rollout, rollout_of
from verl_npu_workbench.plan.share import Share, share_of

SETTINGS = {
    "trainer.n_gpus_per_node": 8,
    "trainer.nnodes": 1,
    "data.max_prompt_length": 1024,
    "data.max_response_length": 3072,
    "data.train_batch_size": 64,
    "algorithm.adv_estimator": "grpo",
    "actor_rollout_ref.model.enable_gradient_checkpointing": True,
    "actor_rollout_ref.model.use_remove_padding": True,
    "actor_rollout_ref.actor.strategy": "fsdp2",
    "actor_rollout_ref.actor.ppo_mini_batch_size": 32,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size": 1,
    "actor_rollout_ref.actor.fsdp_config.param_offload": False,
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload": False,
    "actor_rollout_ref.rollout.n": 4,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 8,
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 2,
    "actor_rollout_ref.rollout.gpu_memory_utilization": 0.6,
}
TUNING = {
    "data.max_length": 4096,
    "data.train_batch_size": 128,
    "data.micro_batch_size_per_gpu": 4,
    "model.enable_gradient_checkpointing": True,
}
FSDP_SETTINGS = {
    "model.partial_pretrain": "Qwen/Qwen3-8B",
    "model.strategy": "fsdp2",
    "ulysses_sequence_parallel_size": 1,
    "use_remove_padding": False,
}
ENGINE_SETTINGS = {
    "model.path": "Qwen/Qwen3-8B",
    "model.use_remove_padding": True,
    "engine.strategy": "fsdp2",
    "engine.fsdp_size": -1,
    "engine.offload_policy": False,
    "engine.ulysses_sequence_parallel_size": 1,
    "data.use_dynamic_bsz": True,
    "data.max_token_len_per_gpu": 16384,
}
SEPARATE = {
    "trainer.use_v1": True,
    "trainer.v1.trainer_mode": "separate_async",
    "actor_rollout_ref.hybrid_engine": True,
    "actor_rollout_ref.rollout.nnodes": 2,
    "actor_rollout_ref.rollout.n_gpus_per_node": 4,
    "actor_rollout_ref.rollout.free_cache_engine": True,
    "actor_rollout_ref.rollout.checkpoint_engine.backend": "nccl",
    "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes": 2048,
}
"""Settings that give v1's trainer servers of its own."""
ALONE = SEPARATE | {"actor_rollout_ref.hybrid_engine": False}
"""The same where the trainer's NPUs never serve."""
MODEL = Model(
    folder=Path("model"),
    source="a test",
    parameters=8_000_000_000,
    cache=147456,
    key_heads=8,
    heads=32,
    layers=36,
    active=8_000_000_000,
    experts=0,
    largest=1_200_000_000,
)


def job_of(**others: object) -> RankJob:
    """Return the job of a rank, with changes."""
    known: dict[str, object] = {
        "tree": "",
        "config": {},
        "changes": {},
        "rank": 0,
        "world": 8,
        "local": 8,
        "sequences": 2,
        "prompt": 3,
        "response": 4,
        "scored": 3,
        "lengths": (),
        "scored_lengths": (),
        "rollout_weights": 0,
        "buckets": 0,
        "picture": None,
        "critic": False,
        "reference": False,
        "trainer": "",
        "flops": 1.0,
        "bandwidth": 1.0,
    }
    return RankJob(**{**known, **others})  # type: ignore[arg-type]


@pytest.fixture
def settings() -> Callable[..., Settings]:
    """Return a function that makes the settings of a script that fits, with changes."""
    return lambda **others: Settings({**SETTINGS, **others})


@pytest.fixture
def tuning_settings() -> Callable[..., Settings]:
    """Return a function that makes settings of fsdp_sft_trainer, or with `engines` of sft_trainer, with changes."""

    def make(engines: bool = False, **others: object) -> Settings:
        own = ENGINE_SETTINGS if engines else FSDP_SETTINGS
        return Settings({**TUNING, **own, **others})

    return make


@pytest.fixture
def torchrun() -> Trainer:
    """Return the trainer that torchrun starts on eight NPUs of one node."""
    return Trainer("verl.trainer.sft_trainer", (), (), 8, Path(), {})


@pytest.fixture
def tuned(tuning_settings, torchrun: Trainer) -> Callable[..., Planned]:
    """Return a function that makes a plan of fine-tuning whose phases have these peaks, in GiB."""

    def make(peaks: dict[str, float], engines: bool = False, state: float = 0.0, **others: object) -> Planned:
        chosen = tuning_settings(engines, **others)
        names = names_of(torchrun, chosen)
        assert names is not None
        return _planned(torchrun, chosen, tuning_share(names, torchrun, chosen), None, _costs(peaks, state=state))

    return make


@pytest.fixture
def planned(settings) -> Callable[..., Planned]:
    """Return a function that makes a plan whose phases have these peaks, in GiB, and keep so much."""

    def make(
        peaks: dict[str, float], kept: float = 0.0, state: float = 0.0, whole: float = 0.0, **others: object
    ) -> Planned:
        chosen = settings(**others)
        share = share_of(chosen)
        rollout = rollout_of(chosen, MODEL, share, HARDWARE["a2"])
        trainer = Trainer("verl.trainer.main_ppo", (), (), 0, Path(), {})
        return _planned(trainer, chosen, share, rollout, _costs(peaks, kept, state, whole))

    return make


def _planned(
    trainer: Trainer, settings: Settings, share: Share, rollout: Rollout | None, costs: list[PhaseCost]
) -> Planned:
    return Planned(
        trainer=trainer,
        settings=settings,
        model=MODEL,
        share=share,
        rollout=rollout,
        outcomes=(Outcome(rank=0, phases=costs, groups=2 if rollout else 1),),
        hardware=HARDWARE["a2"],
        seconds=1.0,
        notes=(),
    )


def _costs(peaks: dict[str, float], kept: float = 0.0, state: float = 0.0, whole: float = 0.0) -> list[PhaseCost]:
    """Return the costs of phases in GiB; the state is the optimizer's, and gradients that are whole on every NPU."""
    return [
        PhaseCost(
            phase=name,
            peak=int(peak * GIB),
            after=int(kept * GIB),
            holders={
                Holder.GRADIENTS.value: int(whole * GIB),
                Holder.OPTIMIZER.value: int((state - whole) * GIB),
                Holder.ACTIVATIONS.value: int(peak * GIB) - int(state * GIB),
            },
            kept={Holder.WEIGHTS.value: int(kept * GIB)},
            micro_batches=2,
            seconds=1.0,
            calls=1000,
        )
        for name, peak in peaks.items()
    ]
