"""Forwarding of the user's variables to every process of a job.

On each host, Ray starts workers with that host's environment. So a job must pass the variables that its workers need
to Ray. Most of upstream's programs take these variables from `get_ppo_ray_runtime_env`, which we patch. Other programs
pass their own list (DAPO, PRIME, SPIN, SPPO and entropy at 796871d7, GKD, FlowRL, split_placement, main_generation) or
no variables at all (SFT over Ray, main_eval).

For these other programs, we use Ray's hook RAY_RUNTIME_ENV_HOOK. Every `ray.init` of this process calls the hook with
the runtime environment that the program, and a submitted job, asked for. If the user also set a hook, we call it
first.

Ray calls no hook if the address starts with `ray://`. Under `uv run`, it calls a hook only if
RAY_ENABLE_UV_RUN_RUNTIME_ENV=0, which verl sets from 1dda039b on. Without the hook, only the programs that use
`get_ppo_ray_runtime_env` forward the variables.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import TypedDict, cast

from ... import environment
from ...ascend.variables import NZ, REQUIRED, SHARED
from ...errors import FleetError, SettingError
from ...manifest import Manifest, manifest, packed
from ...registry.source.tree import SourceTree
from ...registry.state import FeatureEntry
from . import HOOK

_SUBMITTED = "RAY_JOB_CONFIG_JSON_ENV_VAR"

_NO_WEIGHT_SYNC = ("main_eval", "main_generation", "main_generation_server", "sft_trainer_ray")
"""Upstream's programs that never copy new weights into an engine."""


class RuntimeEnvironment(TypedDict, total=False):
    """The part of Ray's runtime environment that we use."""

    env_vars: dict[str, str]


Hook = Callable[[RuntimeEnvironment | None], RuntimeEnvironment | None]


def forward(runtime: RuntimeEnvironment) -> None:
    """In upstream's runtime environment, set the variables that every process needs. Existing values are kept."""
    _add(runtime, given_by_ray=_submitted())


def add_variables(runtime: RuntimeEnvironment | None) -> RuntimeEnvironment | None:
    """In the runtime environment of `ray.init`, set the variables that every process needs. Existing values are kept.

    Ray calls this function. The function sets nothing if verl-npu is not active in this process. Raises FleetError if
    the user set a variable to a value that conflicts with the required value.
    """
    earlier = environment.RAY_HOOK.read()
    if earlier:
        runtime = _load(earlier)(runtime)
    if not _is_active():
        return runtime
    # Some entry points pass a dict that belongs to their module, so we change a copy.
    complete = copy.copy(runtime) if runtime else RuntimeEnvironment()
    _add(complete)
    return complete


def _add(runtime: RuntimeEnvironment, given_by_ray: Mapping[str, str] | None = None) -> None:
    """Add the variables that every process needs to `runtime`, except the variables in `given_by_ray`, which Ray
    passes anyway."""
    given_by_ray = given_by_ray or {}
    given = dict(runtime.get("env_vars") or {})
    program = PurePath(sys.argv[0] if sys.argv else "").stem
    refuse_other_values({**os.environ, **given_by_ray, **given}, program)
    added = {
        **{shared.name: os.environ[shared.name] for shared in SHARED if shared.name in os.environ},
        **{requirement.name: requirement.value for requirement in REQUIRED},
        **environment.forwarded(),
        environment.DRIVER_MANIFEST.name: packed(_compared(manifest())),
    }
    runtime["env_vars"] = {**{name: text for name, text in added.items() if name not in given_by_ray}, **given}


def _compared(whole: Manifest) -> Manifest:
    """Return the part of a manifest that the comparison uses.

    Ray and upstream print a job's variables in one line. With all patches, that line would have 35,000 characters.
    """
    features = {
        name: FeatureEntry(owner=entry["owner"], state=entry["state"], patches={})
        for name, entry in whole["features"].items()
    }
    return {**whole, "features": features, "natives": {}, "origin": ""}


def _submitted() -> Mapping[str, str]:
    """Return the variables that were submitted to Ray with this job. Ray rejects a `ray.init` call that passes them
    again."""
    try:
        config = json.loads(os.environ.get(_SUBMITTED, "{}"))
        return dict((config.get("runtime_env") or {}).get("env_vars") or {})
    except (ValueError, AttributeError):
        # Ray reads this variable too, and reports what is wrong with it.
        return {}


def _is_active() -> bool:
    try:
        return manifest()["active"]
    except LookupError:
        return False


def _load(path: str) -> Hook:
    module, _, name = path.rpartition(".")
    try:
        return cast(Hook, getattr(importlib.import_module(module), name))
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingError(
            subject=f"{HOOK}={path}",
            expected="the path of a Python function",
            found=str(error),
            fix=f"correct {HOOK}, or unset it",
        ) from error


def refuse_other_values(variables: Mapping[str, str], program: str) -> None:
    """Raise FleetError if a variable does not have the value that is needed for copying weights into an engine.

    If the installed vllm-ascend does not read the variable, any value is allowed. Releases before 0.11.0rc1 do not
    read it.
    """
    if program in _NO_WEIGHT_SYNC:
        return
    engine = SourceTree.installed(("vllm_ascend",))
    unread = "vllm_ascend" in engine and NZ.name not in engine.used_names("vllm_ascend.envs")
    for requirement in REQUIRED:
        value = variables.get(requirement.name, requirement.value)
        if value != requirement.value and not (unread and requirement is NZ):
            raise FleetError(
                subject=f"{requirement.name}={value}",
                expected=f"{requirement.name}={requirement.value}, because {requirement.reason}",
                found=repr(value),
                fix=f"set {requirement.name}={requirement.value}, or unset the variable",
                override="VERL_NPU_DISABLE=fleet",
            )
