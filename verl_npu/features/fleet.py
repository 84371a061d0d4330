"""Every process of a job decides alike, and the trainer sees that it did before it starts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from .. import activation
from ..registry.fleet import differences
from ..registry.patch import Feature
from ..registry.policy import Policy
from ..registry.probe import Defines, Never
from .weight_sync.settings import NAMES as WEIGHT_SYNC

__all__ = ["FleetError", "compare", "fleet", "publish", "published"]

fleet = Feature("fleet", "the switches reach every process, and the processes are compared before training starts")

# A worker on another host inherits nothing from the shell that started the job.
_SWITCHES = (
    "VERL_NPU",
    "VERL_NPU_DISABLE",
    "VERL_NPU_FORCE",
    "VERL_NPU_MANIFEST_DIR",
    "VERL_NPU_PLACEMENT_TIMEOUT",
    "VERL_NPU_STRICT",
    "VERL_NPU_VIRTUAL",
    "VERL_NPU_VIRTUAL_CANN_VERSION",
    "VERL_NPU_VIRTUAL_COPIES",
    "VERL_NPU_VIRTUAL_DRIVER_VERSION",
    "VERL_NPU_VIRTUAL_FAULTS",
    "VERL_NPU_VIRTUAL_MEMORY",
    "VERL_NPU_VIRTUAL_TORCH_NPU_VERSION",
    *WEIGHT_SYNC,
)
# vllm-ascend lays weights out in FRACTAL_NZ unless told not to, and new weights copied into that are garbled.
_REQUIRED = {"VLLM_ASCEND_ENABLE_NZ": "0"}
_DRIVER = "VERL_NPU_DRIVER_MANIFEST"
_NAMESPACE = b"verl_npu"


class FleetError(RuntimeError):
    """The processes of a job differ in what is patched."""


@fleet.wrap(
    "verl.trainer.constants_ppo:get_ppo_ray_runtime_env",
    why="Ray gives the driver's environment to workers on its own host only, and upstream's list has none of ours",
    how="our switches, and what the driver did, join the environment variables that upstream hands to ray.init",
    link="none: the variables are ours",
    retired_by=Never("upstream cannot know our switches"),
)
def switches_reach_workers(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Add our switches to the runtime environment; what the user sets there himself wins.

    Raises FleetError where the user asks vllm-ascend for a layout that weight syncs garble.
    """
    environment = original(*args, **kwargs)
    for name, needed in _REQUIRED.items():
        found = environment.get("env_vars", {}).get(name, os.environ.get(name, needed))
        if found != needed:
            raise FleetError(
                f"{name}={found}: a rollout engine that gets new weights needs {name}={needed}: copied into the "
                f"layout FRACTAL_NZ they are garbled without an error. Set it to {needed} "
                "(override: VERL_NPU_DISABLE=fleet)"
            )
    ours = dict(_REQUIRED) | {name: os.environ[name] for name in _SWITCHES if name in os.environ}
    ours[_DRIVER] = json.dumps(activation.manifest())
    environment["env_vars"] = {**ours, **environment.get("env_vars", {})}
    return environment


_ALLOCATOR = "PYTORCH_NPU_ALLOC_CONF"
_SEGMENTS = "expandable_segments:True"
_SLEEPS = "vllm-ascend's sleep mode needs an allocator without expandable segments, and says so by an assertion in a "
_SLEEPS += "worker, minutes after the start"
_REFUSED = "the job is refused before its workers are made, with the setting to change"


@fleet.wrap(
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


@fleet.wrap(
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
    told = ((init.get("runtime_env") or {}).get("env_vars") or {}).get(_ALLOCATOR, os.environ.get(_ALLOCATOR, ""))
    sleeps = engine.get("enable_sleep_mode", engine.get("free_cache_engine", False))
    if engine.name == "vllm" and sleeps and _SEGMENTS in told:
        raise FleetError(
            f"{_ALLOCATOR}={told}: vllm-ascend's sleep mode, which actor_rollout_ref.rollout.free_cache_engine=True "
            f"asks for, cannot work with {_SEGMENTS}. Leave {_SEGMENTS} out, or set free_cache_engine=False "
            "(override: VERL_NPU_DISABLE=fleet)"
        )


_DIFFERS = "a fleet in which processes are patched differently trains, and trains wrongly"
_COMPARED = (
    "before the first step the manifests of all processes are compared; strict refuses to start where they differ"
)


@fleet.wrap(
    "verl.trainer.ppo.ray_trainer:RayPPOTrainer.fit",
    why=_DIFFERS,
    how=_COMPARED,
    link="none: it is about our patches",
    retired_by=Never("it is about our patches"),
)
def compared_before_training(original: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """Compare the processes, then train. Raises FleetError under strict where they differ."""
    compare()
    return original(trainer, *args, **kwargs)


@fleet.wrap(
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer.fit",
    why=_DIFFERS,
    how=_COMPARED,
    link="none: it is about our patches",
    retired_by=Never("it is about our patches"),
    requires=Defines("verl.trainer.ppo.v1.trainer_base:PPOTrainer.fit"),
)
def compared_before_v1_trains(original: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """Compare the processes, then train. Raises FleetError under strict where they differ."""
    compare()
    return original(trainer, *args, **kwargs)


def compare() -> None:
    """Report whether the processes of this job agree. Raises FleetError under strict where they do not."""
    manifests = published()
    found = differences(manifests)
    if not found:
        activation.report(f"{len(manifests)} processes agree on what is patched")
        return
    text = f"{len(manifests)} processes differ in what is patched: " + " | ".join(found)
    if Policy.from_environment("VERL_NPU", os.environ).strict:
        raise FleetError(
            f"{text}; install the same verl-npu and upstreams on every host and set the same variables "
            "(override: VERL_NPU_STRICT=0)"
        )
    activation.report(text)


def publish(manifest: Mapping[str, Any]) -> None:
    """Give the manifest of this Ray worker to the others of its job, through Ray's own store."""
    try:
        from ray.experimental import internal_kv

        if internal_kv._internal_kv_initialized():
            key = f"{_job()}/{manifest['host']}-{manifest['pid']}".encode()
            internal_kv._internal_kv_put(key, json.dumps(manifest).encode(), namespace=_NAMESPACE)
    except (ImportError, AttributeError) as error:
        # Ray promises no stable interface here; a worker must not die of it, and the comparison will miss it by name.
        activation.report(f"this Ray keeps no manifests for us ({error}): use VERL_NPU_MANIFEST_DIR instead")


def published() -> list[dict[str, Any]]:
    """The manifests of this job's Ray workers, and of its driver where that handed its own down."""
    from ray.experimental import internal_kv

    keys = internal_kv._internal_kv_list(f"{_job()}/".encode(), namespace=_NAMESPACE)
    values = [internal_kv._internal_kv_get(key, namespace=_NAMESPACE) for key in sorted(keys)]
    workers = [json.loads(value) for value in values if value is not None]
    return [*([json.loads(os.environ[_DRIVER])] if _DRIVER in os.environ else []), *workers]


def _job() -> str:
    import ray

    return str(ray.get_runtime_context().get_job_id())
