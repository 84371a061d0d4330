"""How long the run is, and what it writes."""

from __future__ import annotations

from collections.abc import Mapping

from ..settings import Settings
from .base import Rule, Scene

__all__ = ["CHECKPOINTS", "DURATION", "LOGGER", "PROFILER", "VALIDATION", "WARM_UP"]


def _duration(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    changed: dict[str, object] = {
        "trainer.total_training_steps": scene.steps,
        "trainer.total_epochs": max(script.whole("trainer.total_epochs", 1), 1),
    }
    if "rollout.total_rollout_steps" in script:
        # Of the fully asynchronous trainer: it counts prompts.
        required = script.whole("async_training.require_batches", 1) * script.whole(
            "async_training.trigger_parameter_sync_step", 1
        )
        sync = min(script.whole("async_training.trigger_parameter_sync_step", 1), 2)
        changed["async_training.trigger_parameter_sync_step"] = sync
        batches = min(max(script.whole("async_training.require_batches", 1), 1), 2)
        if required:
            changed["async_training.require_batches"] = batches
        mini = now.whole("actor_rollout_ref.actor.ppo_mini_batch_size", 1)
        changed["rollout.total_rollout_steps"] = mini * batches * sync * scene.steps
    return changed


def _warm_up(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    changed: dict[str, object] = {}
    for key in script.ending("lr_warmup_steps", "lr_decay_steps", "critic_warmup"):
        if script.whole(key) >= scene.steps:
            changed[key] = max(scene.steps - 1, 0) if not key.endswith("lr_decay_steps") else scene.steps
    return changed


def _validation(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    key = "trainer.test_freq"
    return {key: scene.steps} if script.whole(key) > 0 else {}


def _checkpoints(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    changed: dict[str, object] = {"trainer.default_local_dir": str(scene.folder / "checkpoints")}
    if script.whole("trainer.save_freq") > 0:
        changed["trainer.save_freq"] = scene.steps
    for key in ("trainer.default_hdfs_dir", "trainer.resume_from_path"):
        if script.get(key):
            changed[key] = None
    if script.text("trainer.resume_mode") == "resume_path":
        changed["trainer.resume_mode"] = "disable"
    for key in ("trainer.rollout_data_dir", "trainer.validation_data_dir"):
        if script.get(key):
            changed[key] = str(scene.folder / key.rpartition(".")[2])
    return changed


def _logger(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    return {"trainer.logger": ["console"]} if "trainer.logger" in script else {}


def _profiler(script: Settings, now: Settings, scene: Scene) -> Mapping[str, object]:
    changed: dict[str, object] = {}
    for key in script.matching(r"(global_profiler|.*\.profiler)\.save_path|trainer\.profiler\.save_path"):
        if script.get(key):
            changed[key] = str(scene.folder / "profile")
    for key in ("global_profiler.steps", "trainer.profile_steps"):
        if script.get(key):
            changed[key] = [1]
    return changed


DURATION = Rule("steps", "A few steps show that the job trains. What goes wrong after hours is not shown.", _duration)
WARM_UP = Rule("warm-up", "It ends before the last step, so that the learning rate is above zero once.", _warm_up)
VALIDATION = Rule("validation", "Once, at the last step, if the script validates at all.", _validation)
CHECKPOINTS = Rule(
    "checkpoints",
    "One at the last step if the script saves any, in the run's own folder; no earlier run is resumed.",
    _checkpoints,
)
LOGGER = Rule("logger", "The console alone: others want an account, or a server.", _logger)
PROFILER = Rule("profiler", "It writes to the run's own folder, in the first step.", _profiler)
