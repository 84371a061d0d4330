"""The settings of verl's v1 trainer, `separate_async`, that stand for those of a recipe that it takes the place of.

Source, at 1dda039b and v0.9.1:

- `FullyAsyncTrainer.__init__` trains on `required_samples = ppo_mini_batch_size * require_batches` prompts at a time,
  and `_fit_update_weights` syncs after `trigger_parameter_sync_step` of them. `PPOTrainerSeparateAsync` trains on
  `ppo_mini_batch_size` prompts at a time and syncs after `parameter_sync_step`: so many mini batches are its batch.
- `FullyAsyncRollouter.set_max_required_samples` lets `1 + staleness_threshold` times the prompts between two syncs be
  on their way. `PPOTrainer.prepare_step` hands out a batch for each step, beside `num_warmup_batches` at the start.
- `total_train_steps`, in the same function, divides `total_rollout_steps` by the prompts between two syncs: that is a
  step of the v1 trainer. `test_freq` and `save_freq` count syncs in both.
- `dynamic_schedule_deactivate_ratio` and `switch_threshold_ratio` are the share of these prompts at which the trainer
  takes its NPUs back from the rollout.
- Neither recipe drops an answer for its age. `ReplayBuffer` drops none if `max_off_policy_threshold` is null, or, up
  to 1dda039b, if `max_off_policy_strategy` is `wait`.
- `OneStepOffRayTrainer.fit` generates one batch while it trains on another.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from verl_npu.findings import Finding, Severity
from verl_npu.language import gettext as _
from verl_npu.registry.source.tree import SourceTree

from .keys import BATCH, MINI_BATCH, MODE, PACKED, ROLES, ROLLOUT, ROLLOUT_NODES, ROLLOUT_NPUS, SYNC_STEP, size
from .modes import trainers
from .settings import Settings, written
from .trainer import Trainer

_RECIPE = re.compile(r"(fully_async_policy|one_step_off_policy)[./]")
_V1, _SAMPLER = "trainer.v1.separate_async", "trainer.v1.sampler.max_off_policy"
_BUFFER = "verl.trainer.ppo.v1.replay_buffer"
_KEPT = (
    f"{ROLLOUT}.calculate_log_probs",
    "algorithm.rollout_correction.bypass_mode",
    PACKED,
    f"{ROLLOUT}.checkpoint_engine.backend",
)
"""What the recipes' own configurations set, and the v1 trainer's leaves at another value."""
_LENT = {
    "async_training.use_dynamic_resource_scheduling": f"{_V1}.hybrid_rollout.enable_switch",
    "async_training.dynamic_schedule_deactivate_ratio": f"{_V1}.hybrid_rollout.switch_threshold_ratio",
}
_READ = {
    "async_training.staleness_threshold",
    "async_training.trigger_parameter_sync_step",
    "async_training.require_batches",
    "rollout.total_rollout_steps",
    ROLLOUT_NPUS,
    ROLLOUT_NODES,
    *_LENT,
}
_OF_RECIPE = re.compile(r"\+*((?:async_training|rollout)\.[\w.]+)=")


def of_recipe(trainer: Trainer, settings: Settings, tree: SourceTree) -> Iterator[Finding]:
    """Propose what takes a recipe's place, where the script's verl has it; nothing is wrong with the recipe."""
    recipe = _RECIPE.search(trainer.module)
    target = trainers(tree).get("separate_async")
    if recipe is None or target is None:
        return
    source = tree.read(target.module) or b""
    proposed: dict[str, object] = {"trainer.use_v1": True, MODE: "separate_async"}
    proposed |= _of_fully_async(settings, source) if recipe[1] == "fully_async_policy" else _of_one_step_off(settings)
    may_be_null = b"max_off_policy_threshold is not None" in (tree.read(_BUFFER) or b"")
    never_dropped = (f"{_SAMPLER}_threshold", None) if may_be_null else (f"{_SAMPLER}_strategy", "wait")
    proposed |= [never_dropped]
    proposed[f"{ROLLOUT}.nnodes"] = size(settings, ROLLOUT_NODES)
    proposed[f"{ROLLOUT}.n_gpus_per_node"] = settings.whole(ROLLOUT_NPUS)
    proposed |= {key: settings.get(key) for key in _KEPT if key in settings}
    # Without it the v1 trainer has servers on the trainer's NPUs as well, which sleep while it trains.
    if b'get("hybrid_engine"' in source and not proposed.get(_LENT["async_training.use_dynamic_resource_scheduling"]):
        proposed[f"{ROLES}.hybrid_engine"] = False
    given = [found[1] for word in trainer.overrides if (found := _OF_RECIPE.match(word))]
    lacks = set(_LENT) if b"hybrid_rollout" not in source else set()
    without = [key for key in dict.fromkeys(given) if key not in _READ - lacks]
    yield Finding(
        "successor",
        Severity.OK,
        _("a recipe whose place verl's v1 trainer takes"),
        subject=trainer.module,
        why=_("nothing there stands for {keys}").format(keys=_(", ").join(without))
        if without
        else _("there is a setting there for each of its own"),
        fix=_(
            "for that, start verl.trainer.main_ppo with {settings}, and leave async_training.* and rollout.* out"
        ).format(settings=" ".join(f"{key}={written(value)}" for key, value in proposed.items())),
    )


def _of_fully_async(settings: Settings, source: bytes) -> Mapping[str, object]:
    steps = size(settings, "async_training.require_batches")
    steps *= size(settings, "async_training.trigger_parameter_sync_step")
    batch = steps * size(settings, MINI_BATCH)
    ahead = max(settings.number("async_training.staleness_threshold", 1), 0)
    # Up to 1dda039b it is a number of batches; later it may be a part of one.
    ahead = math.ceil(ahead) if b"range(num_warmup_batches)" in source or ahead == int(ahead) else ahead
    found: dict[str, object] = {BATCH: batch, SYNC_STEP: steps, f"{_V1}.num_warmup_batches": ahead}
    prompts = settings.whole("rollout.total_rollout_steps")
    if prompts > 0:
        found["trainer.total_training_steps"] = max(prompts // batch, 1)
    if b"hybrid_rollout" in source and settings.truth("async_training.use_dynamic_resource_scheduling"):
        found |= {new: settings.get(old) for old, new in _LENT.items() if old in settings}
    return found


def _of_one_step_off(settings: Settings) -> Mapping[str, object]:
    steps = max(settings.whole(BATCH) // size(settings, MINI_BATCH), 1)
    return {BATCH: steps * size(settings, MINI_BATCH), SYNC_STEP: steps, f"{_V1}.num_warmup_batches": 1}
