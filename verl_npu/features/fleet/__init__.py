"""Forwarding of the user's settings to every process of a job, and a comparison of the processes before training.

Upstream has a trainer for each algorithm, and each trainer has its own `fit`. If we patched every `fit`, we would miss
new trainers and those of users. But every `fit` first makes upstream's logger, `Tracking`, and at that moment the
workers are ready. So we compare the processes when `Tracking` is made. This covers, at every pin that has them:

    RayPPOTrainer and v1's PPOTrainer, main_ppo_sync
    DAPO, PRIME, entropy, SPPO, GKD, transfer_queue, vla, specRL
    one_step_off_policy; fully_async_policy up to v0.7.0
    SFT by torchrun (fsdp_sft_trainer, sft_trainer) and over Ray (sft_trainer_ray)
    recipes without their own fit: FlowRL, FAPO, r1_ascend, ReTool, CollabLLM, DeepEyes, and others
    users' own trainers that log through Tracking

Two trainers need their own patch. From v0.7.1 on, FullyAsyncTrainer makes the logger before the workers exist. SPIN
continues without a logger if making the logger raises an error. A user's trainer that does not use Tracking is not
covered. Neither are programs that do not train (main_generation, main_eval).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

from ... import environment
from ...registry.patch import Feature
from ...registry.source.probe import Defines, Never
from .manifests import join, publish

if TYPE_CHECKING:
    from .forwarding import RuntimeEnvironment

fleet = Feature(
    "fleet", "Every process gets the user's variables, and verl-npu compares the processes before training starts."
)

_SEPARATE = "verl.experimental.separation.ray_trainer:SeparateRayPPOTrainer._fit_start_profile"
_SPIN = "recipe.spin.spin_trainer:RaySPINTrainer.fit_dpo"
_WHY = "If a job's processes are patched differently, the job trains without an error, and the numbers are wrong."
_HOW = (
    "Before the first step, we compare the manifests of all processes. A difference is a warning, or an error with "
    "VERL_NPU_STRICT=1."
)
_LINK = "none: the patch serves verl-npu's own patches"
_NEVER = Never("the patch serves verl-npu's own patches")
_compared: WeakSet[object] = WeakSet()
Result = TypeVar("Result")


@fleet.wrap(
    "verl.utils.tracking:Tracking.__init__",
    why=_WHY,
    how=_HOW,
    link=_LINK,
    retired_by=_NEVER,
    name="compare_processes_before_training",
)
@fleet.wrap(
    _SPIN,
    why=_WHY,
    how=_HOW,
    link=_LINK,
    retired_by=_NEVER,
    requires=Defines(_SPIN),
    name="compare_processes_before_spin_training",
)
def compare_processes_before_training(
    original: Callable[..., Result], upstream: object, *args: object, **kwargs: object
) -> Result:
    """Compare the processes, and then create the logger or train. Raises FleetError if the processes differ and
    VERL_NPU_STRICT=1 is set."""
    _compare()
    return original(upstream, *args, **kwargs)


@fleet.wrap(_SEPARATE, why=_WHY, how=_HOW, link=_LINK, retired_by=_NEVER, requires=Defines(_SEPARATE))
def compare_processes_before_fully_async_training(
    original: Callable[..., Result], trainer: object, *args: object, **kwargs: object
) -> Result:
    """Compare the processes at a trainer's first step. Raises FleetError if the processes differ and
    VERL_NPU_STRICT=1.

    We cannot patch FullyAsyncTrainer itself, because Ray replaces the class in its module.
    """
    if trainer not in _compared:
        _compared.add(trainer)
        _compare()
    return original(trainer, *args, **kwargs)


@fleet.wrap(
    "verl.utils.distributed:initialize_global_process_group",
    why="SFT by torchrun runs without Ray, so its ranks cannot be compared through Ray. Ranks that are patched "
    "differently train together without an error.",
    how="Each rank that has joined the group puts its manifest into the group's store. The comparison reads it there.",
    link=_LINK,
    retired_by=_NEVER,
)
def publish_manifest_to_other_ranks(original: Callable[..., Result], *args: object, **kwargs: object) -> Result:
    """Join the process group, then publish this rank's manifest to the other ranks. Later changes are published,
    too."""
    result = original(*args, **kwargs)
    join()
    publish()
    return result


def _compare() -> None:
    # Imported here, because only one process of a job compares.
    from .comparison import compare

    compare()


@fleet.wrap(
    "verl.trainer.constants_ppo:get_ppo_ray_runtime_env",
    why="Workers on other hosts do not inherit the driver's environment, and upstream passes none of verl-npu's "
    "variables to them. The user's VERL_NPU_* settings have no effect there.",
    how="We add the user's variables and the driver's manifest to the variables that upstream passes to ray.init.",
    link="none: the variables are verl-npu's own",
    retired_by=Never("upstream cannot know verl-npu's variables"),
)
def forward_variables_to_workers(
    original: Callable[..., RuntimeEnvironment], *args: object, **kwargs: object
) -> RuntimeEnvironment:
    """Return upstream's runtime environment for Ray, and add to it the variables that every process needs.

    If upstream already sets a variable, upstream's value is kept. Raises FleetError if the user set one of the
    variables to a value that breaks every job.
    """
    from .forwarding import forward

    runtime = original(*args, **kwargs)
    forward(runtime)
    return runtime


HOOK = "RAY_RUNTIME_ENV_HOOK"
_OUR_HOOK = f"{__name__}.forwarding.add_variables"


def install_hook() -> None:
    """Make every `ray.init` call in this process call `add_variables`. Calling this function again has no effect."""
    earlier = os.environ.get(HOOK, "")
    if earlier == _OUR_HOOK:
        return
    if earlier:
        os.environ[environment.RAY_HOOK.name] = earlier
    os.environ[HOOK] = _OUR_HOOK


def remove_hook() -> None:
    """Restore the user's hook. If the user had not set a hook, only remove verl-npu's hook. Calling this function
    again has no effect."""
    if os.environ.get(HOOK) != _OUR_HOOK:
        return
    del os.environ[HOOK]
    earlier = os.environ.pop(environment.RAY_HOOK.name, "")
    if earlier:
        os.environ[HOOK] = earlier
