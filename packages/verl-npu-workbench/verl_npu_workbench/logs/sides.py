"""Tells which side of an asynchronous training waits for the other, and what to change according to verl's pages.

verl computes the metrics here:

- v1's separate_async: `timing_s/gen` is the time until the replay buffer has samples (`_step_once` in
  verl/trainer/ppo/v1/trainer_base.py); `training/off_policy/…` comes from `_compute_metrics` there and from
  replay_buffer.py. verl does not log how long servers wait. But a weight sync interrupts all running generations,
  which then continue with the next version (`CheckpointEngineManager.update_weights`,
  `FullyAsyncLLMServerClient.generate`). So if no answer contains tokens of two versions, the servers were idle at the
  sync.
- fully_async_policy: `trainer/idle_ratio` in detach_utils.py and `rollouter/idle_ratio` in fully_async_rollouter.py;
  from v0.7.1 on their names begin with `fully_async/`. Up to v0.7.0, the rollouter's ratio is logged only if the
  rollouter was idle.
- one_step_off_policy: `timing_s/wait_prev_gen` in ray_trainer.py, which is `timing_s/gen` from ccd7d934 on. Only this
  trainer has `timing_s/sync_rollout_weights`.

The advice is from docs/advance/v1_async_trainer.md ("Observability and Tuning"), fully_async.md ("Parameter Tuning
Recommendations"), and one_step_off.md ("Dynamic Resource Tuning").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from verl_npu.language import gettext as _

from .metrics import STEP_SECONDS
from .training import TrainingLog

RECENT = 20
"""The number of recent steps that are evaluated."""
_FEW = 3
"""The smallest number of steps from which a conclusion is drawn."""
_LONG, _HARDLY = 0.05, 0.01
"""Two fractions of a step: from the first on, a side counts as waiting; below the second, it hardly waits."""

_STEP, _GEN = STEP_SECONDS.names[0], "timing_s/gen"
_SPANS, _NEWEST = "training/off_policy/trajectory_spans/max", "training/off_policy/trajectory_staleness/min"
_SWITCHED, _LENT = "timing_s/switch_to_trainer", "timing_s/switch_wait"
_ONE_STEP_OFF = "timing_s/sync_rollout_weights"
_TRAINER_IDLE = ("fully_async/trainer/idle_ratio", "trainer/idle_ratio")
_SERVERS_IDLE = ("fully_async/rollouter/idle_ratio", "rollouter/idle_ratio")

Step = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Waiting:
    """The times for which each side waits for the other side: medians over the recent steps."""

    trainer: float
    """The time that the trainer waits, as a fraction of a step."""
    servers: float | None
    """The time that the servers wait, as a fraction of the time between two weight syncs. None if verl does not log
    it."""
    text: str
    """A sentence, without a full stop, that names the side that waits and gives advice. Empty if the log does not show
    it."""


def waiting_of(log: TrainingLog) -> Waiting | None:
    """Return how long each side of a training waits for the other side. Return None if the training is not
    asynchronous or has too few steps."""
    # The first step of a run compiles and warms up.
    warm = {next(iter(log.steps), 0), *(restart.to for restart in log.restarts)}
    steps = [metrics for step, metrics in log.steps.items() if step <= log.last and step not in warm][-RECENT:]
    if len(steps) < _FEW:
        return None
    idle = _values(steps, *_TRAINER_IDLE)
    if idle:
        return _fully_async(median(idle), steps)
    parts = [part for part in map(_waited, steps) if part is not None]
    if len(parts) < _FEW:
        return None
    if _values(steps, _ONE_STEP_OFF):
        return _one_step_off(median(parts))
    return _separate_async(median(parts), steps) if _is_separate(log, steps) else None


def _values(steps: Sequence[Step], *names: str) -> list[float]:
    found = (next((step[name] for name in names if name in step), math.nan) for step in steps)
    return [value for value in found if math.isfinite(value)]


def _waited(step: Step) -> float | None:
    """Return the fraction of a step in which the trainer waited for answers."""
    seconds, whole = step.get("timing_s/wait_prev_gen", step.get(_GEN, math.nan)), step.get(_STEP, 0.0)
    return seconds / whole if math.isfinite(seconds) and 0 < whole < math.inf else None


def _is_separate(log: TrainingLog, steps: Sequence[Step]) -> bool:
    """Return whether the v1 trainer and its servers run on separate NPUs.

    The answer is in the configuration in the console log. Without it, the trainer's metrics are used. They differ
    because, before the first step, the trainer's NPUs also serve requests.
    """
    if not all(_SPANS in step for step in steps):
        return False
    return log.mode == "separate_async" if log.mode else any(_SWITCHED in step for step in log.steps.values())


def _fully_async(trainer: float, steps: Sequence[Step]) -> Waiting:
    idle = _values(steps, *_SERVERS_IDLE)
    if not idle:
        return Waiting(trainer, None, "")
    servers = median([*idle, *[0.0] * (len(steps) - len(idle))])
    if trainer >= _LONG and servers >= _LONG:
        text = _(
            "the trainer and the servers wait for each other in turn, the trainer for {trainer:.0%} of a "
            "step and the servers for {servers:.0%}: a larger async_training.staleness_threshold (below "
            "1) or a larger trigger_parameter_sync_step keeps both busy, with older answers"
        )
    elif trainer >= _LONG:
        text = _(
            "the trainer waits for answers for {trainer:.0%} of a step, and the servers wait for {servers:.0%}: give "
            "the servers more NPUs and the trainer fewer"
        )
    elif servers >= _LONG:
        text = _(
            "the servers wait for the trainer for {servers:.0%} of the time, and the trainer waits for {trainer:.0%}: "
            "give the trainer more NPUs and the servers fewer"
        )
    else:
        text = _(
            "neither side waits for long: the trainer waits for {trainer:.0%} of a step, the servers for {servers:.0%}"
        )
    return Waiting(trainer, servers, text.format(trainer=trainer, servers=servers))


def _one_step_off(trainer: float) -> Waiting:
    text = ""
    if trainer >= _LONG:
        text = _(
            "the trainer waits for answers for {trainer:.0%} of a step: give the servers more NPUs if "
            "all answers have a similar length, or limit the response length if a few answers are much "
            "longer"
        )
    elif trainer < _HARDLY:
        text = _(
            "the servers wait for the trainer: their answers are ready before the trainer asks, and the "
            "servers get no prompts until the next sync; verl does not log for how long. Give the "
            "trainer more NPUs and the servers fewer"
        )
    return Waiting(trainer, None, text.format(trainer=trainer))


def _separate_async(trainer: float, steps: Sequence[Step]) -> Waiting:
    spans = [step[_SPANS] for step in steps]
    dropped = any(name.endswith("/evicted_samples") for step in steps for name in step)
    # The versions of a dropped answer are unknown, and an answer from an earlier run was not generated now.
    unbroken = all(each == 1 for each in spans) and not dropped and all(step.get(_NEWEST, 0) >= 0 for step in steps)
    text = ""
    if trainer >= _LONG and unbroken:
        text = _(
            "the trainer and the servers wait for each other in turn: the trainer waits for "
            "{trainer:.0%} of a step, and the servers were idle at each of the last {count} syncs. A "
            "larger trainer.v1.separate_async.num_warmup_batches gives the servers work in advance, with "
            "older answers"
        )
    elif trainer >= _LONG and any(_LENT in step for step in steps):
        text = _(
            "the trainer waits for answers for {trainer:.0%} of a step, although its NPUs help to serve: give the "
            "servers more NPUs and the trainer fewer"
        )
    elif trainer >= _LONG:
        text = _(
            "the trainer waits for answers for {trainer:.0%} of a step: give the servers more NPUs and the trainer "
            "fewer, or let the trainer's NPUs help to serve "
            "(trainer.v1.separate_async.hybrid_rollout.enable_switch=True)"
        )
    elif unbroken:
        text = _(
            "the servers wait for the trainer: the servers were idle at each of the last {count} syncs "
            "(verl does not log for how long), and the trainer waits for {trainer:.0%} of a step. Give "
            "the trainer more NPUs and the servers fewer"
        )
    elif all(each > 1 for each in spans):
        text = _(
            "neither side waits for long: the trainer waits for {trainer:.0%} of a step, and the servers "
            "were busy at each of the last {count} syncs"
        )
    return Waiting(trainer, None, text.format(trainer=trainer, count=len(steps)))
