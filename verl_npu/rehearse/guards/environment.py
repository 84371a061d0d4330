"""Variables: those that never reach the workers, and those that an engine cannot live with."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..engine import may_sleep
from .base import Finding, Script

__all__ = ["exports", "segments"]

_OF_WORKERS = r"(?:HCCL|VLLM|ASCEND|PYTORCH_NPU|TASK_QUEUE|CPU_AFFINITY|MULTI_STREAM|COMBINED)\w*"
_ASSIGNED = re.compile(rf"^[ \t]*({_OF_WORKERS})=", re.MULTILINE)
_EXPORTED = re.compile(rf"^[ \t]*(?:export|declare -x)[ \t]+(?:\w+=\S*[ \t]+)*({_OF_WORKERS})\b", re.MULTILINE)
_ALLOCATOR = "PYTORCH_NPU_ALLOC_CONF"


def exports(script: Script) -> Iterator[Finding]:
    """Warn of variables that are set and do not reach Ray's workers."""
    for name in dict.fromkeys(_ASSIGNED.findall(script.text)):
        if name not in _EXPORTED.findall(script.text) and name not in script.trainer.exports:
            yield Finding(
                "exports",
                False,
                name,
                "that the script sets it and does not export it",
                "no process that the script starts sees it",
                f"write export {name}=…",
            )
    if not script.submitted:
        return
    for name in script.trainer.exports:
        if re.fullmatch(_OF_WORKERS, name) and name not in script.runtime:
            yield Finding(
                "exports",
                False,
                name,
                "that the script exports it and hands the job to a cluster with ray job submit",
                "a submitted job gets the variables of its runtime environment, and not those of the shell",
                f"put {name} under env_vars of the file that --runtime-env names",
            )


def segments(script: Script) -> Iterator[Finding]:
    """Warn of expandable segments beside vLLM's sleep mode; whether the engine sleeps, the running job decides."""
    setting = script.trainer.exports.get(_ALLOCATOR, "")
    settings = script.settings
    if (
        "expandable_segments:True" in setting
        and settings.text("actor_rollout_ref.rollout.name") == "vllm"
        and may_sleep(settings)
    ):
        yield Finding(
            "allocator",
            False,
            f"{_ALLOCATOR}={setting}",
            "expandable segments beside an engine that may sleep",
            "vllm-ascend's sleep mode does not work with them; the job ends at its start if its engine sleeps",
            "leave expandable_segments:True out, or set actor_rollout_ref.rollout.free_cache_engine=False",
        )
