"""A plan that needs no run: settings, a share, and what ranks have answered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from verl_npu.plan.hardware import GIB, HARDWARE
from verl_npu.plan.job import Outcome, PhaseCost
from verl_npu.plan.model import Model
from verl_npu.plan.planning import Planned
from verl_npu.plan.rollout import rollout_of
from verl_npu.plan.share import share_of
from verl_npu.rehearse.settings import Settings
from verl_npu.rehearse.trainer import Trainer

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
)


@pytest.fixture
def settings() -> Callable[..., Settings]:
    """Settings of a script that fits, with others in their place."""
    return lambda **others: Settings({**SETTINGS, **{key.replace("__", "."): value for key, value in others.items()}})


@pytest.fixture
def planned() -> Callable[..., Planned]:
    """What came of a plan whose phases had such peaks, in GiB, and left so much after the update."""

    def make(
        peaks: dict[str, float], kept: float = 0.0, exports: dict[str, str] | None = None, **others: object
    ) -> Planned:
        chosen = Settings({**SETTINGS, **{key.replace("__", "."): value for key, value in others.items()}})
        share = share_of(chosen, None)
        costs = [
            PhaseCost(
                phase=name,
                before=0,
                peak=int(peak * GIB),
                after=int(kept * GIB),
                holders={"activations and temporary buffers": int(peak * GIB)},
                kept={"weights": int(kept * GIB)},
                micro_batches=2,
                seconds=1.0,
                calls=1000,
            )
            for name, peak in peaks.items()
        ]
        return Planned(
            trainer=Trainer("verl.trainer.main_ppo", (), (), 0, Path(), exports or {}),
            settings=chosen,
            model=MODEL,
            share=share,
            rollout=rollout_of(chosen, MODEL, share, HARDWARE["a2"]),
            outcomes=(Outcome(rank=0, phases=costs, groups=2),),
            hardware=HARDWARE["a2"],
            seconds=1.0,
            notes=(),
        )

    return make
