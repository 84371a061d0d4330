"""The available jobs, by name. Each is in a module of this package."""

from __future__ import annotations

from harness.errors import BadInput
from harness.jobs import dapo, fully_async, gkd, grpo, linear_attention, megatron, one_step_off, ppo, sft, v1_async
from harness.jobs.base import Job, Plan
from harness.pins import PINS, Pin
from verl_npu.language import gettext as _

JOBS: dict[str, Job] = {
    job.name: job
    for job in (
        grpo.JOB,
        ppo.JOB,
        dapo.JOB,
        sft.JOB,
        one_step_off.JOB,
        one_step_off.MEGATRON,
        fully_async.JOB,
        fully_async.MEGATRON,
        gkd.JOB,
        linear_attention.KERNELS,
        linear_attention.TORCH,
        megatron.JOB,
        megatron.PPO,
        megatron.MOE,
        v1_async.SEPARATE,
        v1_async.COLOCATED,
    )
}

__all__ = ["JOBS", "Job", "Plan", "find"]


def find(name: str, pin: Pin) -> Job:
    """Return the job called `name`. Raise BadInput if there is no such job, or if the job does not run at this pin."""
    if name not in JOBS:
        raise BadInput(
            _("--job: expected one of {jobs}, or a recipe in scripts/recipes; found {name!r}").format(
                jobs=_(", ").join(JOBS), name=name
            )
        )
    if name not in pin.jobs:
        raise BadInput(
            _("--job {name}: this job requires one of the pins {pins}; found the pin {pin}").format(
                name=name,
                pins=_(", ").join(each.name for each in PINS.values() if name in each.jobs),
                pin=pin.name,
            )
        )
    return JOBS[name]
