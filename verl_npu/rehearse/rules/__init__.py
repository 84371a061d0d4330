"""What a rehearsal scales, rule by rule: each has a name, a reason, and the settings that it changes.

The order matters: a later rule sees what the earlier ones changed.
"""

from __future__ import annotations

from ..settings import Change, Settings
from .base import Rule, Scene
from .batches import BATCHES, MICRO_BATCHES, MINI_BATCHES, SAMPLES
from .duration import CHECKPOINTS, DURATION, LOGGER, PROFILER, VALIDATION, WARM_UP
from .lengths import BUDGETS, LENGTHS, OVERLONG
from .machine import NPUS, PARALLEL, PIPELINE_STAGES, RAY, WORKERS
from .model import DATA, DIST_CHECKPOINT, MODEL, REWARD, SHAPES
from .rollout import BUCKETS, ENGINE, SLEEP, TENSORS, WHOLE

__all__ = ["RULES", "Rule", "Scene", "scale"]

RULES = (
    MODEL,
    SHAPES,
    DIST_CHECKPOINT,
    DATA,
    REWARD,
    LENGTHS,
    BUDGETS,
    OVERLONG,
    BATCHES,
    SAMPLES,
    MINI_BATCHES,
    MICRO_BATCHES,
    NPUS,
    PARALLEL,
    PIPELINE_STAGES,
    RAY,
    WORKERS,
    DURATION,
    WARM_UP,
    VALIDATION,
    CHECKPOINTS,
    LOGGER,
    PROFILER,
    ENGINE,
    SLEEP,
    WHOLE,
    TENSORS,
    BUCKETS,
)


def scale(settings: Settings, scene: Scene, without: tuple[str, ...] = ()) -> tuple[list[Change], Settings]:
    """Apply every rule but those that `without` names; return the changes in order, and the settings after them."""
    changes: list[Change] = []
    written = settings
    for rule in RULES:
        if rule.name in without:
            continue
        after = {
            key: value for key, value in rule.change(settings, written, scene).items() if written.get(key) != value
        }
        changes += [Change(key, written.get(key), value, rule.name) for key, value in after.items()]
        written = written.changed(after)
    return changes, written
