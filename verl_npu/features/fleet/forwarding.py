"""The variables of the user reach every process of the job."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
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
    why="Workers on other hosts do not inherit the driver's environment, and upstream gives them none of verl-npu's "
    "variables: there the user's VERL_NPU_* settings have no effect.",
    how="The variables that the user set, and the driver's manifest, are added to those that upstream gives ray.init.",
    link="none: the variables are verl-npu's own",
    retired_by=Never("upstream cannot know the variables of verl-npu"),
)
def forward_variables_to_workers(
    original: Callable[..., RuntimeEnvironment], *args: object, **kwargs: object
) -> RuntimeEnvironment:
    """Add verl-npu's variables to the runtime environment; what the user sets there himself wins.

    Raises FleetError if the user gives a variable another value than every job needs.
    """
    runtime = original(*args, **kwargs)
    of_user = runtime.get("env_vars", {})
    _check_required(of_user)
    runtime["env_vars"] = {
        **{requirement.name: requirement.value for requirement in REQUIRED},
        **environment.forwarded(),
        environment.DRIVER_MANIFEST.name: json.dumps(manifest()),
        **of_user,
    }
    return runtime


def _check_required(variables: Mapping[str, str]) -> None:
    for requirement in REQUIRED:
        value = variables.get(requirement.name, os.environ.get(requirement.name, requirement.value))
        if value != requirement.value:
            raise FleetError(
                subject=f"{requirement.name}={value}",
                expected=f"{requirement.name}={requirement.value}, because {requirement.reason}",
                found=repr(value),
                fix=f"set it to {requirement.value} or leave it out",
                override="VERL_NPU_DISABLE=fleet",
            )
