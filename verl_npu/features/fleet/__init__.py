"""Every process of a job gets the user's settings, and the processes are compared before training starts: in every
trainer, once they are there and before the first step.

Upstream has a trainer for each algorithm, with a `fit` of its own. To patch each would leave out the next one, and a
user's own. What they share is the first thing that `fit` does when the workers are ready: it makes upstream's logger,
`Tracking`. So that is where the comparison is. It covers, at every pin that has them,

    RayPPOTrainer and v1's PPOTrainer, main_ppo_sync
    DAPO, PRIME, entropy, SPPO, GKD, transfer_queue, vla, specRL
    one_step_off_policy; fully_async_policy up to v0.7.0
    SFT by torchrun (fsdp_sft_trainer, sft_trainer) and over Ray (sft_trainer_ray)
    recipes without a fit of their own: FlowRL, FAPO, r1_ascend, ReTool, CollabLLM, DeepEyes and others
    trainers of users that log through Tracking

Two make it otherwise and have a patch of their own: FullyAsyncTrainer from v0.7.1 on, which makes it before there are
workers, and SPIN, which goes on without a logger when making it raises. A trainer of a user that does not use Tracking
is not covered, and neither is a program that does not train (main_generation, main_eval).
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

fleet = Feature("fleet", "Every process gets the user's variables, and all are compared before training starts.")

_SEPARATE = "verl.experimental.separation.ray_trainer:SeparateRayPPOTrainer._fit_start_profile"
_SPIN = "recipe.spin.spin_trainer:RaySPINTrainer.fit_dpo"
_WHY = "If processes of a job are patched differently, it trains without an error, and the numbers are wrong."
_HOW = (
    "The manifests of all processes are compared before the first step. A difference is a warning, or with "
    "VERL_NPU_STRICT=1 an error."
)
_LINK = "none: it is about verl-npu's own patches"
_NEVER = Never("it is about verl-npu's own patches")
_compared: WeakSet[object] = WeakSet()
Result = TypeVar("Result")


@fleet.wrap("verl.utils.tracking:Tracking.__init__", why=_WHY, how=_HOW, link=_LINK, retired_by=_NEVER)
def compare_processes_before_training(
    original: Callable[..., Result], tracking: object, *args: object, **kwargs: object
) -> Result:
    """Compare the processes, then make the logger. Raises FleetError if they differ and VERL_NPU_STRICT is 1."""
    _compare()
    return original(tracking, *args, **kwargs)


@fleet.wrap(_SEPARATE, why=_WHY, how=_HOW, link=_LINK, retired_by=_NEVER, requires=Defines(_SEPARATE))
def compare_processes_before_fully_async_training(
    original: Callable[..., Result], trainer: object, *args: object, **kwargs: object
) -> Result:
    """Compare the processes at the first step of a trainer. Raises FleetError if they differ and VERL_NPU_STRICT is 1.

    The step of FullyAsyncTrainer itself cannot be patched, since Ray has taken its class out of its module.
    """
    if trainer not in _compared:
        _compared.add(trainer)
        _compare()
    return original(trainer, *args, **kwargs)


@fleet.wrap(_SPIN, why=_WHY, how=_HOW, link=_LINK, retired_by=_NEVER, requires=Defines(_SPIN))
def compare_processes_before_spin_training(
    original: Callable[..., Result], trainer: object, *args: object, **kwargs: object
) -> Result:
    """Compare the processes, then train. Raises FleetError if they differ and VERL_NPU_STRICT is 1."""
    _compare()
    return original(trainer, *args, **kwargs)


@fleet.wrap(
    "verl.utils.distributed:initialize_global_process_group",
    why="SFT by torchrun has no Ray through which its ranks could be compared: ranks that are patched differently "
    "train together without an error.",
    how="Each rank that has joined the group puts its manifest into the group's store, where the comparison finds it.",
    link=_LINK,
    retired_by=_NEVER,
)
def publish_manifest_to_other_ranks(original: Callable[..., Result], *args: object, **kwargs: object) -> Result:
    """Join the group, then tell the other ranks what verl-npu did in this one, now and whenever it changes."""
    result = original(*args, **kwargs)
    join()
    publish()
    return result


def _compare() -> None:
    # Imported here: of a job's processes, one compares.
    from .comparison import compare

    compare()


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
    """Add the variables that every process needs to the runtime environment; what upstream sets there wins.

    Raises FleetError if the user gives a variable another value than every job needs.
    """
    from .forwarding import forward

    runtime = original(*args, **kwargs)
    forward(runtime)
    return runtime


HOOK = "RAY_RUNTIME_ENV_HOOK"
_OURS = f"{__name__}.forwarding.add_variables"


def install_hook() -> None:
    """Let Ray call `add_variables` in every `ray.init` of this process. Repeating it does nothing."""
    earlier = os.environ.get(HOOK, "")
    if earlier == _OURS:
        return
    if earlier:
        os.environ[environment.RAY_HOOK.name] = earlier
    os.environ[HOOK] = _OURS


def remove_hook() -> None:
    """Give Ray back the hook that the user set, or none. Repeating it does nothing."""
    if os.environ.get(HOOK) != _OURS:
        return
    del os.environ[HOOK]
    earlier = os.environ.pop(environment.RAY_HOOK.name, "")
    if earlier:
        os.environ[HOOK] = earlier
