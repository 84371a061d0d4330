"""A vLLM engine that is to sleep, and the allocator with which it cannot."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ...ascend.variables import ALLOCATOR, EXPANDABLE_SEGMENTS
from ...errors import FleetError
from ...registry.source.probe import Defines, Never
from .feature import rollout

__all__ = ["refuse_segments"]

_SLEEPS = "vllm-ascend's sleep mode needs an allocator without expandable segments, and says so by an assertion in a "
_SLEEPS += "worker, minutes after the start"
_REFUSED = "the job is refused before its workers are made, with the setting to change"


@rollout.wrap(
    "verl.utils.config:validate_config",
    why=_SLEEPS,
    how=_REFUSED,
    link="https://github.com/volcengine/verl/issues/3902",
    retired_by=Never("it is about the environment that the user gives the job"),
    requires=Defines("verl.utils.config:validate_config"),
)
def validated_with_allocator(original: Callable[..., Any], config: Any, *args: Any, **kwargs: Any) -> Any:
    """Validate the configuration, and the allocator's setting with it."""
    refuse_segments(config)
    return original(config, *args, **kwargs)


@rollout.wrap(
    "verl.trainer.ppo.ray_trainer:RayPPOTrainer._validate_config",
    why=_SLEEPS,
    how=_REFUSED,
    link="https://github.com/volcengine/verl/issues/3902",
    retired_by=Defines("verl.utils.config:validate_config"),
    requires=Defines("verl.trainer.ppo.ray_trainer:RayPPOTrainer._validate_config"),
)
def trainer_validated_with_allocator(original: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """Validate the configuration, and the allocator's setting with it."""
    refuse_segments(trainer.config)
    return original(trainer, *args, **kwargs)


def refuse_segments(config: Any) -> None:
    """Raise FleetError where a vLLM engine is to sleep and the job's allocator has expandable segments."""
    engine = config.actor_rollout_ref.rollout
    init = config.get("ray_init") or config.get("ray_kwargs", {}).get("ray_init") or {}
    told = ((init.get("runtime_env") or {}).get("env_vars") or {}).get(ALLOCATOR, os.environ.get(ALLOCATOR, ""))
    sleeps = engine.get("enable_sleep_mode", engine.get("free_cache_engine", False))
    if engine.name == "vllm" and sleeps and EXPANDABLE_SEGMENTS in told:
        raise FleetError(
            subject=f"{ALLOCATOR}={told}",
            expected=f"no {EXPANDABLE_SEGMENTS} beside actor_rollout_ref.rollout.free_cache_engine=True, which asks "
            "for vllm-ascend's sleep mode",
            found=f"both, and sleep mode cannot work with {EXPANDABLE_SEGMENTS}",
            fix=f"leave {EXPANDABLE_SEGMENTS} out, or set free_cache_engine=False",
            override="VERL_NPU_DISABLE=rollout",
        )
