"""Batches against the NPUs, as verl's own validation asserts them."""

from __future__ import annotations

from collections.abc import Iterator

from .base import Finding, Script

__all__ = ["batches"]

_TRAIN, _SAMPLES = "data.train_batch_size", "actor_rollout_ref.rollout.n"
_MINI = "actor_rollout_ref.actor.ppo_mini_batch_size"


def batches(script: Script) -> Iterator[Finding]:
    """Refuse batches that verl's validate_config refuses."""
    settings, npus = script.settings, script.npus
    train, mini = settings.whole(_TRAIN), settings.whole(_MINI)
    # Trainers that stream their samples have no batch.
    if train <= 0 or npus <= 0 or "algorithm.adv_estimator" not in settings:
        return
    if mini > train:
        yield _refused(
            f"{_TRAIN} and {_MINI}",
            f"{train} and {mini}",
            "verl asserts that a batch has at least as many prompts as a mini batch",
            f"set {_MINI} to {train} or less",
        )
    samples = max(settings.whole(_SAMPLES, 1), 1)
    parts = npus
    if script.megatron:
        prefix = "actor_rollout_ref.actor.megatron"
        model = settings.whole(f"{prefix}.tensor_model_parallel_size", 1) * settings.whole(
            f"{prefix}.pipeline_model_parallel_size", 1
        )
        parts = npus // max(model * settings.whole(f"{prefix}.context_parallel_size", 1), 1)
    if parts and not settings.truth("actor_rollout_ref.actor.use_dynamic_bsz") and train * samples % parts:
        yield _refused(
            f"{_TRAIN} x {_SAMPLES}",
            f"{train} x {samples} = {train * samples} over {parts} parts",
            "verl asserts that the samples of a step can be divided among its data parallel ranks",
            "choose a batch that divides",
        )


def _refused(subject: str, found: str, why: str, fix: str) -> Finding:
    return Finding("batches", True, subject, found, why, fix)
