"""The processes of a job are compared by their manifests: in every trainer, once they are there and before the first
step.

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

from collections.abc import Callable
from typing import TypeVar
from weakref import WeakSet

from ...registry.source.probe import Defines, Never
from .feature import fleet
from .manifests import join, publish

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
