"""Translates the settings of two recipes into settings of the v1 trainer. Its mode `separate_async` replaces both
recipes.

Source, at 1dda039b and v0.9.1:

- `FullyAsyncTrainer.__init__` trains on `required_samples = ppo_mini_batch_size * require_batches` prompts at a time,
  and `_fit_update_weights` syncs after `trigger_parameter_sync_step` of these batches. `PPOTrainerSeparateAsync`
  trains on `ppo_mini_batch_size` prompts at a time and syncs after `parameter_sync_step` mini-batches, which make its
  batch.
- `FullyAsyncRollouter.set_max_required_samples` allows `1 + staleness_threshold` times the prompts between two syncs
  in flight. `PPOTrainer.prepare_step` requests one batch for each step, and `num_warmup_batches` at the start.
- `set_max_required_samples` also divides `total_rollout_steps` by the prompts between two syncs to get
  `total_train_steps`; one of these is one step of the v1 trainer. `test_freq` and `save_freq` count syncs in both.
- `dynamic_schedule_deactivate_ratio` and `switch_threshold_ratio` are the share of these prompts at which the trainer
  takes its NPUs back from the rollout.
- Neither recipe drops an old answer. `ReplayBuffer` drops no answer if `max_off_policy_threshold` is null, or, up to
  1dda039b, if `max_off_policy_strategy` is `wait`.
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
_COPIED_KEYS = (
    f"{ROLLOUT}.calculate_log_probs",
    "algorithm.rollout_correction.bypass_mode",
    PACKED,
    f"{ROLLOUT}.checkpoint_engine.backend",
)
"""Settings that are copied, because their defaults differ between the recipes' configurations and the v1 trainer's."""
_SWITCHING_KEYS = {
    "async_training.use_dynamic_resource_scheduling": f"{_V1}.hybrid_rollout.enable_switch",
    "async_training.dynamic_schedule_deactivate_ratio": f"{_V1}.hybrid_rollout.switch_threshold_ratio",
}
_TRANSLATED_KEYS = {
    "async_training.staleness_threshold",
    "async_training.trigger_parameter_sync_step",
    "async_training.require_batches",
    "rollout.total_rollout_steps",
    ROLLOUT_NPUS,
    ROLLOUT_NODES,
    *_SWITCHING_KEYS,
}
_RECIPE_KEY = re.compile(r"\+*((?:async_training|rollout)\.[\w.]+)=")


def successor_findings(trainer: Trainer, settings: Settings, tree: SourceTree) -> Iterator[Finding]:
    """Yield a finding that suggests the v1 trainer as a replacement for a recipe, if the script's version of verl has
    this trainer. The finding is only advice, because the recipe still works."""
    recipe = _RECIPE.search(trainer.module)
    target = trainers(tree).get("separate_async")
    if recipe is None or target is None:
        return
    source = tree.read(target.module) or b""
    proposed: dict[str, object] = {"trainer.use_v1": True, MODE: "separate_async"}
    proposed |= (
        _fully_async_settings(settings, source)
        if recipe[1] == "fully_async_policy"
        else _one_step_off_settings(settings)
    )
    may_be_null = b"max_off_policy_threshold is not None" in (tree.read(_BUFFER) or b"")
    never_dropped = (f"{_SAMPLER}_threshold", None) if may_be_null else (f"{_SAMPLER}_strategy", "wait")
    proposed |= [never_dropped]
    proposed[f"{ROLLOUT}.nnodes"] = size(settings, ROLLOUT_NODES)
    proposed[f"{ROLLOUT}.n_gpus_per_node"] = settings.whole(ROLLOUT_NPUS)
    proposed |= {key: settings.get(key) for key in _COPIED_KEYS if key in settings}
    # By default the v1 trainer also keeps servers on the trainer's NPUs, which sleep while it trains.
    if b'get("hybrid_engine"' in source and not proposed.get(
        _SWITCHING_KEYS["async_training.use_dynamic_resource_scheduling"]
    ):
        proposed[f"{ROLES}.hybrid_engine"] = False
    given = [found[1] for word in trainer.overrides if (found := _RECIPE_KEY.match(word))]
    lacks = set(_SWITCHING_KEYS) if b"hybrid_rollout" not in source else set()
    without = [key for key in dict.fromkeys(given) if key not in _TRANSLATED_KEYS - lacks]
    yield Finding(
        "successor",
        Severity.OK,
        _("a recipe that verl's v1 trainer can replace"),
        subject=trainer.module,
        why=_("verl's v1 trainer has no equivalent of {keys}").format(keys=_(", ").join(without))
        if without
        else _("verl's v1 trainer has an equivalent of each of the recipe's settings"),
        fix=_(
            "start verl.trainer.main_ppo with {settings}, and remove the settings async_training.* and rollout.*"
        ).format(settings=" ".join(f"{key}={written(value)}" for key, value in proposed.items())),
    )


def _fully_async_settings(settings: Settings, source: bytes) -> Mapping[str, object]:
    steps = size(settings, "async_training.require_batches")
    steps *= size(settings, "async_training.trigger_parameter_sync_step")
    batch = steps * size(settings, MINI_BATCH)
    ahead = max(settings.number("async_training.staleness_threshold", 1), 0)
    # Up to 1dda039b num_warmup_batches is a whole number; later it may be a fraction.
    ahead = math.ceil(ahead) if b"range(num_warmup_batches)" in source or ahead == int(ahead) else ahead
    found: dict[str, object] = {BATCH: batch, SYNC_STEP: steps, f"{_V1}.num_warmup_batches": ahead}
    prompts = settings.whole("rollout.total_rollout_steps")
    if prompts > 0:
        found["trainer.total_training_steps"] = max(prompts // batch, 1)
    if b"hybrid_rollout" in source and settings.truth("async_training.use_dynamic_resource_scheduling"):
        found |= {new: settings.get(old) for old, new in _SWITCHING_KEYS.items() if old in settings}
    return found


def _one_step_off_settings(settings: Settings) -> Mapping[str, object]:
    steps = max(settings.whole(BATCH) // size(settings, MINI_BATCH), 1)
    return {BATCH: steps * size(settings, MINI_BATCH), SYNC_STEP: steps, f"{_V1}.num_warmup_batches": 1}
