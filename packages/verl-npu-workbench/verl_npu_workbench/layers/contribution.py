"""Compares layers within a running job: on its first step and on every N-th one, with VERL_NPU_COMPARE_LAYERS=N."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from verl_npu import environment
from verl_npu.features import Contribution
from verl_npu.registry.patch import Feature
from verl_npu.registry.source.probe import Defines, Never

_MODE = "verl.workers.fsdp_workers:ActorRolloutRefWorker.trainer_mode"
layers = Feature("layers", "The rollout engine computes the same values as the trainer.")


@layers.wrap(
    _MODE,
    uses=[f"verl.workers.fsdp_workers:ActorRolloutRefWorker.{name}" for name in ("compute_log_prob", "rollout_mode")],
    why="If the engine computes other values than the trainer, a job only shows a high kl, or nothing.",
    how="On the first step and on every N-th one, we compare the engine's layers with the trainer's before the engine "
    "sleeps.",
    link="none: nobody seems to have asked for it",
    retired_by=Never("this is verl-npu's own check, for users who ask where trainer and engine part"),
    requires=Defines(_MODE),
)
async def compare_layers_after_generation(original: Callable[[Any], Awaitable[object]], worker: Any) -> object:
    """Switch the worker back to training. In the steps that the user selected, first compare the engine's layers with
    the trainer's layers."""
    # Imported here, because every process of a job loads this module, and only workers compare.
    from .job import compare_before_training

    return await compare_before_training(original, worker, _every())


def _every() -> int:
    return int(environment.COMPARE_LAYERS.read())


contribution = (
    Contribution((layers,), Path(__file__).parent / "locks") if _every() else Contribution((), Path(__file__).parent)
)
