"""Batches: how many prompts a step has, how many answers each gets, and how they are split."""

from __future__ import annotations

from collections.abc import Mapping

from ..settings import Settings
from .base import Rule, Scene

__all__ = ["BATCHES", "MICRO_BATCHES", "MINI_BATCHES", "PROMPTS", "SAMPLES"]

PROMPTS = 8
_TRAIN, _GENERATED, _VALIDATED = "data.train_batch_size", "data.gen_batch_size", "data.val_batch_size"
_SAMPLES = "actor_rollout_ref.rollout.n"
_MOST_SAMPLES = 4
_MOST_MICRO = 2
_MOST_GENERATED = 3


def _scaled(number: int, before: int, after: int, least: int = 1) -> int:
    return max(least, number * after // before) if before else max(least, min(number, after))


def _batches(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    changed: dict[str, object] = {}
    before = script.whole(_TRAIN)
    if before > 0:
        changed[_TRAIN] = min(PROMPTS, before)
        if script.whole(_GENERATED) > before:
            changed[_GENERATED] = min(_scaled(script.whole(_GENERATED), before, PROMPTS), _MOST_GENERATED * PROMPTS)
        elif script.whole(_GENERATED) > 1:
            changed[_GENERATED] = min(script.whole(_GENERATED), PROMPTS)
    if script.whole(_VALIDATED):
        changed[_VALIDATED] = min(script.whole(_VALIDATED), PROMPTS)
    return changed


def _samples(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    keys = [_SAMPLES, "rollout.n", "actor_rollout_ref.rollout.val_kwargs.n"]
    return {key: min(script.whole(key), _MOST_SAMPLES) for key in keys if script.whole(key) > _MOST_SAMPLES}


def _mini_batches(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    changed: dict[str, object] = {}
    for key in script.ending("ppo_mini_batch_size"):
        before = script.whole(_TRAIN) or script.whole(key)
        if not script.whole(key):
            continue
        size = _scaled(script.whole(key), before, now.whole(_TRAIN) or PROMPTS)
        # Each replica of the model gets as many.
        while size * max(now.whole(_SAMPLES, 1), 1) % scene.layout.data:
            size += 1
        changed[key] = size
    return changed


def _micro_batches(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    endings = (
        "ppo_micro_batch_size_per_gpu",
        "log_prob_micro_batch_size_per_gpu",
        "forward_micro_batch_size_per_gpu",
        "micro_batch_size_per_gpu",
        "infer_micro_batch_size_per_gpu",
        "micro_batch_size",
        "ppo_micro_batch_size",
        "log_prob_micro_batch_size",
        "forward_micro_batch_size",
    )
    changed: dict[str, object] = {}
    for key in script.ending(*endings):
        size = script.whole(key)
        # What is counted over all NPUs is at least one for each of them.
        most = _MOST_MICRO if key.endswith("_per_gpu") else _MOST_MICRO * scene.layout.data
        if size > most:
            changed[key] = most
    return changed


BATCHES = Rule("batches", f"{PROMPTS} prompts make a step of seconds; generation keeps its proportion.", _batches)
SAMPLES = Rule(
    "samples", f"{_MOST_SAMPLES} answers to a prompt show grouping and its advantages as well as 16.", _samples
)
MINI_BATCHES = Rule(
    "mini batches",
    "They keep their proportion to the batch, so that there are as many optimizer steps, as far as whole prompts go.",
    _mini_batches,
)
MICRO_BATCHES = Rule(
    "micro batches", f"At most {_MOST_MICRO}, so that gradients are still accumulated over several.", _micro_batches
)
