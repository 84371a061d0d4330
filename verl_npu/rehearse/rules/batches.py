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
        after = _train(script, scene)
        changed[_TRAIN] = after
        if script.whole(_GENERATED) > before:
            changed[_GENERATED] = min(_scaled(script.whole(_GENERATED), before, after), _MOST_GENERATED * after)
        elif script.whole(_GENERATED) > 1:
            changed[_GENERATED] = min(script.whole(_GENERATED), after)
    if script.whole(_VALIDATED):
        changed[_VALIDATED] = min(script.whole(_VALIDATED), PROMPTS)
    return changed


def _train(script: Settings, scene: Scene) -> int:
    """So many prompts that their answers can be divided among all NPUs, as verl asserts."""
    size = min(PROMPTS, script.whole(_TRAIN))
    while size * min(max(script.whole(_SAMPLES, 1), 1), _MOST_SAMPLES) % scene.layout.npus:
        size += 1
    return size


def _samples(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    keys = [_SAMPLES, "rollout.n", "actor_rollout_ref.rollout.val_kwargs.n"]
    return {key: min(script.whole(key), _MOST_SAMPLES) for key in keys if script.whole(key) > _MOST_SAMPLES}


def _mini_batches(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    changed: dict[str, object] = {}
    for key in script.ending("ppo_mini_batch_size"):
        if not script.whole(key):
            continue
        size = _scaled(script.whole(key), max(script.whole(_TRAIN), 0), now.whole(_TRAIN) or PROMPTS)
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
        size, own = script.whole(key), _of_each(key, now, scene)
        # What is counted over all NPUs is at least one for each of them.
        parts = 1 if key.endswith("_per_gpu") else scene.layout.data
        most = _MOST_MICRO * parts
        if own and own % min(max(size // parts, 1), _MOST_MICRO):
            most = parts
        if size > most:
            changed[key] = most
    return changed


def _of_each(key: str, now: Settings, scene: Scene) -> int:
    """What a replica divides into these micro batches: a mini batch, or a batch of fine-tuning; 0 if neither."""
    section, _, name = key.rpartition(".")
    if name.startswith("ppo_micro"):
        total = now.whole(f"{section}.ppo_mini_batch_size") * max(now.whole(_SAMPLES, 1), 1)
    else:
        total = now.whole(_TRAIN) if section == "data" else 0
    return max(total, 0) // scene.layout.data


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
