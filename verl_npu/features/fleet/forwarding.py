"""The variables of the user reach every process of the job.

Ray starts workers on other hosts from the environment of that host, so a job has to name the variables that it
wants there. Most entry points of upstream ask `get_ppo_ray_runtime_env` for them, and that is patched. Others have a
list of their own (DAPO, PRIME, SPIN, SPPO and entropy at 796871d7, GKD, FlowRL, split_placement, main_generation) or
none (SFT over Ray, main_eval). For them Ray's own hook is used, RAY_RUNTIME_ENV_HOOK: Ray calls it in every
`ray.init` of this process with what the entry point, and the submitted job if there is one, asked for. A hook that the
user set is called first.

Ray calls no such hook for a `ray://` address, nor under `uv run` unless RAY_ENABLE_UV_RUN_RUNTIME_ENV=0 (which verl
sets from 1dda039b on). There only the entry points that ask `get_ppo_ray_runtime_env` forward the variables.
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
"""The programs of upstream that never copy new weights into an engine."""


class RuntimeEnvironment(TypedDict, total=False):
    """The part of Ray's runtime environment that is used here."""

    env_vars: dict[str, str]


Hook = Callable[[RuntimeEnvironment | None], RuntimeEnvironment | None]


def forward(runtime: RuntimeEnvironment) -> None:
    """Add the variables that every process needs to what upstream gives `ray.init`; what is there already wins."""
    _add(runtime, leave=_submitted())


def add_variables(runtime: RuntimeEnvironment | None) -> RuntimeEnvironment | None:
    """Add the variables that every process needs to what was given to `ray.init`; what is there already wins.

    Ray calls this. In a process where verl-npu is not active nothing is added. Raises FleetError if the user gives a
    variable another value than every job needs.
    """
    earlier = environment.RAY_HOOK.read()
    if earlier:
        runtime = _load(earlier)(runtime)
    if not _is_active():
        return runtime
    # Some entry points pass a dict of their module.
    complete = copy.copy(runtime) if runtime else RuntimeEnvironment()
    _add(complete)
    return complete


def _add(runtime: RuntimeEnvironment, leave: Mapping[str, str] | None = None) -> None:
    """Add the variables to `runtime`, but for those in `leave`, which Ray gives to the workers anyway."""
    leave = leave or {}
    given = dict(runtime.get("env_vars") or {})
    program = PurePath(sys.argv[0] if sys.argv else "").stem
    refuse_other_values({**os.environ, **leave, **given}, program)
    added = {
        **{shared.name: os.environ[shared.name] for shared in SHARED if shared.name in os.environ},
        **{requirement.name: requirement.value for requirement in REQUIRED},
        **environment.forwarded(),
        environment.DRIVER_MANIFEST.name: packed(_compared(manifest())),
    }
    runtime["env_vars"] = {**{name: text for name, text in added.items() if name not in leave}, **given}


def _compared(whole: Manifest) -> Manifest:
    """Return the parts of a manifest by which processes are compared.

    Ray and upstream print the variables of a job in one line, in which all patches would be 35,000 characters.
    """
    features = {
        name: FeatureEntry(owner=entry["owner"], state=entry["state"], patches={})
        for name, entry in whole["features"].items()
    }
    return {**whole, "features": features, "natives": {}, "origin": ""}


def _submitted() -> Mapping[str, str]:
    """Return the variables of a job that was submitted to Ray, which refuses a `ray.init` that gives them again."""
    try:
        config = json.loads(os.environ.get(_SUBMITTED, "{}"))
        return dict((config.get("runtime_env") or {}).get("env_vars") or {})
    except (ValueError, AttributeError):
        # It is Ray's own, and Ray says what is wrong with it.
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
            fix="correct it or leave it out",
        ) from error


def refuse_other_values(variables: Mapping[str, str], program: str) -> None:
    """Raise FleetError if a variable has another value than every job needs that copies weights into an engine.

    A vllm-ascend that is installed here and does not read the variable, as none before 0.11.0rc1 does, needs nothing.
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
                fix=f"set it to {requirement.value} or leave it out",
                override="VERL_NPU_DISABLE=fleet",
            )
