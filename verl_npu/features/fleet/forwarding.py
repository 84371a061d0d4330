"""The switches of the user reach every process of the job."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TypedDict

from ... import environment
from ...ascend.variables import REQUIRED
from ...errors import FleetError
from ...manifest import manifest
from ...registry.source.probe import Never
from .feature import fleet

__all__ = ["forward_variables_to_workers"]


class RuntimeEnvironment(TypedDict, total=False):
    """The part of Ray's runtime environment that is used here."""

    env_vars: dict[str, str]


@fleet.wrap(
    "verl.trainer.constants_ppo:get_ppo_ray_runtime_env",
    why="Ray gives the driver's environment to workers on its own host only, and upstream's list has none of ours",
    how="our switches, and what the driver did, join the environment variables that upstream hands to ray.init",
    link="none: the variables are ours",
    retired_by=Never("upstream cannot know our switches"),
)
def forward_variables_to_workers(
    original: Callable[..., RuntimeEnvironment], *args: object, **kwargs: object
) -> RuntimeEnvironment:
    """Add our variables to the runtime environment; what the user sets there himself wins.

    Raises FleetError if the user sets a variable otherwise than every job needs it.
    """
    runtime = original(*args, **kwargs)
    chosen = runtime.get("env_vars", {})
    for needed in REQUIRED:
        found = chosen.get(needed.name, os.environ.get(needed.name, needed.value))
        if found != needed.value:
            raise FleetError(
                subject=f"{needed.name}={found}",
                expected=f"{needed.name}={needed.value}, because {needed.reason}",
                found=repr(found),
                fix=f"set it to {needed.value} or leave it out",
                override="VERL_NPU_DISABLE=fleet",
            )
    ours = {needed.name: needed.value for needed in REQUIRED} | environment.forwarded()
    ours[environment.DRIVER_MANIFEST.name] = json.dumps(manifest())
    runtime["env_vars"] = {**ours, **chosen}
    return runtime
