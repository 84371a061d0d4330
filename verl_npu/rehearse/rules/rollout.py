"""The rollout engine."""

from __future__ import annotations

from collections.abc import Mapping

from ..settings import Settings
from .base import Rule, Scene

__all__ = ["BUCKETS", "ENGINE", "SLEEP", "TENSORS", "WHOLE"]

_MEGABYTES = 64
_ROLLOUT = "actor_rollout_ref.rollout"
_NAMES = (f"{_ROLLOUT}.name", "reward.reward_model.rollout.name", "reward_model.rollout.name")


def _engine(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    if not scene.engine:
        return {}
    return {key: scene.engine for key in _NAMES if script.text(key) not in ("", "???")}


def _sleep(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    return {f"{_ROLLOUT}.engine_kwargs.vllm.enable_sleep_mode": False} if scene.awake else {}


def _whole(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    split = now.whole(f"{_ROLLOUT}.tensor_model_parallel_size") > 1
    return {f"{_ROLLOUT}.tensor_model_parallel_size": 1} if scene.awake and split else {}


def _tensors(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    if not scene.engine:
        return {}
    keys = list(script.matching(r"actor_rollout_ref\.rollout\.(quantization|mtp\.enable|mtp\.enable_rollout)"))
    return {key: (False if "mtp" in key else None) for key in keys if script.get(key)}


def _buckets(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    keys = script.ending("update_weights_bucket_megabytes")
    return {key: _MEGABYTES for key in keys if script.whole(key) > _MEGABYTES}


ENGINE = Rule(
    "rollout engine",
    "The script's engine needs an NPU or is not installed here; transformers' generate takes its place. What the "
    "engine does is not shown.",
    _engine,
)
TENSORS = Rule("quantization and drafts", "The engine that takes the place of the script's has neither.", _tensors)
SLEEP = Rule("sleep mode", "The installed vLLM is a build for CPUs, which has no sleep mode.", _sleep)
WHOLE = Rule(
    "rollout ranks",
    "The installed vLLM is a build for CPUs, which starts the ranks of an engine past verl's workers: they would have "
    "no engine that gets weights.",
    _whole,
)
BUCKETS = Rule(
    "weight buckets",
    "Each rank that takes part in a hand-over has two of them in memory, and the small model is smaller than one.",
    _buckets,
)
