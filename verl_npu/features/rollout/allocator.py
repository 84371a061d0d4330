"""The allocator's setting with which a vLLM engine cannot sleep."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol, TypeVar

from ...ascend.variables import ALLOCATOR, EXPANDABLE_SEGMENTS
from ...errors import FleetError
from ...registry.source.probe import Defines, Never
from ..configuration import Section
from .engine_arguments import refuse_unknown_arguments
from .engine_settings import refuse_engine_settings
from .engine_versions import refuse_engine_versions
from .feature import rollout
from .kernels import warn_of_kernels
from .parallelism import refuse_unread_parallelism
from .rl_mode import enable_rl_mode
from .sleep import remedy
from .weight_format import warn_of_weight_format

__all__ = [
    "check_allocator_for_sleep_mode",
    "check_allocator_for_sleep_mode_in_trainer",
    "refuse_expandable_segments",
]

_WHY = (
    "vllm-ascend's sleep mode does not work with expandable segments. A worker says so minutes after the start: "
    "`Expandable segments are not compatible with memory pool`."
)
_HOW = "The job is refused before its workers are made, with an error that names the setting to change."

Result = TypeVar("Result")


class Trainer(Protocol):
    """Upstream's trainer."""

    config: Section


@rollout.wrap(
    "verl.utils.config:validate_config",
    why=_WHY,
    how=_HOW,
    link="https://github.com/volcengine/verl/issues/3902",
    retired_by=Never("it is about the environment that the user gives the job"),
    requires=Defines("verl.utils.config:validate_config"),
)
def check_allocator_for_sleep_mode(
    original: Callable[..., Result], config: Section, *args: object, **kwargs: object
) -> Result:
    """Validate the configuration, and the allocator's setting with it."""
    _judge(config)
    return original(config, *args, **kwargs)


@rollout.wrap(
    "verl.trainer.ppo.ray_trainer:RayPPOTrainer._validate_config",
    why=_WHY,
    how=_HOW,
    link="https://github.com/volcengine/verl/issues/3902",
    retired_by=Defines("verl.utils.config:validate_config"),
    requires=Defines("verl.trainer.ppo.ray_trainer:RayPPOTrainer._validate_config"),
)
def check_allocator_for_sleep_mode_in_trainer(
    original: Callable[..., Result], trainer: Trainer, *args: object, **kwargs: object
) -> Result:
    """Validate the configuration, and the allocator's setting with it."""
    _judge(trainer.config)
    return original(trainer, *args, **kwargs)


def _judge(config: Section) -> None:
    refuse_expandable_segments(config)
    refuse_engine_versions(config)
    refuse_engine_settings(config)
    refuse_unread_parallelism(config)
    refuse_unknown_arguments(config)
    enable_rl_mode(config)
    warn_of_weight_format(config)
    warn_of_kernels(config)


def refuse_expandable_segments(config: Section) -> None:
    """Raise FleetError if a vLLM engine is built with sleep mode and the job's allocator has expandable segments."""
    engine = config.actor_rollout_ref.rollout
    init = config.get("ray_init") or config.get("ray_kwargs", {}).get("ray_init") or {}
    of_workers = (init.get("runtime_env") or {}).get("env_vars") or {}
    setting = of_workers.get(ALLOCATOR, os.environ.get(ALLOCATOR, ""))
    if engine.get("name") != "vllm" or EXPANDABLE_SEGMENTS not in setting:
        return
    overrides = remedy(engine)
    if overrides:
        raise FleetError(
            subject=f"{ALLOCATOR}={setting}",
            expected=f"no {EXPANDABLE_SEGMENTS}, because this job's vLLM engine is built with enable_sleep_mode=True",
            found=f"both, and vllm-ascend's sleep mode does not work with {EXPANDABLE_SEGMENTS}",
            fix=f"leave {EXPANDABLE_SEGMENTS} out, or build the engine without sleep mode: {overrides}",
            override="VERL_NPU_DISABLE=rollout",
        )
