"""The keys of upstream's settings, and functions that answer questions about several settings at once. A size that is
not set counts as 1."""

from __future__ import annotations

from .settings import Settings

ROLES = "actor_rollout_ref"
"""The section with the settings of the actor, the reference, the rollout, and the model that they share."""
ACTOR, REFERENCE, ROLLOUT, MODEL = f"{ROLES}.actor", f"{ROLES}.ref", f"{ROLES}.rollout", f"{ROLES}.model"
CRITIC = "critic"
STRATEGY = f"{ACTOR}.strategy"
MINI_BATCH = f"{ACTOR}.ppo_mini_batch_size"
PATH, PACKED = f"{MODEL}.path", f"{MODEL}.use_remove_padding"
ENGINE = f"{ROLLOUT}.name"
SAMPLES = f"{ROLLOUT}.n"
ROLLOUT_TENSOR = f"{ROLLOUT}.tensor_model_parallel_size"
FREE_CACHE_ENGINE = f"{ROLLOUT}.free_cache_engine"
REWARD_MODELS = ("reward_model", "reward.reward_model")
"""The sections of reward models: before v0.7.0, and since."""
ESTIMATOR = "algorithm.adv_estimator"
DEVICE = "trainer.device"
NPUS, NODES = "trainer.n_gpus_per_node", "trainer.nnodes"
ROLLOUT_NPUS, ROLLOUT_NODES = "rollout.n_gpus_per_node", "rollout.nnodes"
"""The numbers of NPUs per node and of nodes for the rollout, in recipes whose rollout has separate NPUs."""
MODE = "trainer.v1.trainer_mode"
SYNC_STEP = "trainer.v1.separate_async.parameter_sync_step"
"""The setting for the number of mini-batches between two weight syncs."""
BATCH, GENERATION_BATCH, VALIDATION_BATCH = "data.train_batch_size", "data.gen_batch_size", "data.val_batch_size"
MAX_PROMPT, MAX_RESPONSE = "data.max_prompt_length", "data.max_response_length"
MAX_LENGTH = "data.max_length"
"""The setting for the greatest length of a sequence in fine-tuning."""
TRAIN_FILES, VALIDATION_FILES = "data.train_files", "data.val_files"


def size(settings: Settings, key: str) -> int:
    """Return a size setting, or 1 if the setting is missing or smaller than 1."""
    return max(settings.whole(key, 1), 1)


def is_megatron(settings: Settings, role: str = ACTOR) -> bool:
    """Return whether a role trains with Megatron."""
    return settings.text(f"{role}.strategy") == "megatron"


HOST_FRACTION = f"{ACTOR}.optim.override_optimizer_config.optimizer_offload_fraction"
"""The fraction of a Megatron actor's optimizer that runs on the host, if optimizer_cpu_offload is on."""


def is_partly_on_host(settings: Settings) -> bool:
    """Return whether a Megatron actor's optimizer runs partly on the host and partly on the NPU."""
    on_host = settings.truth(f"{HOST_FRACTION.rpartition('.')[0]}.optimizer_cpu_offload")
    return is_megatron(settings) and on_host and 0 < settings.number(HOST_FRACTION) < 1


def may_sleep(settings: Settings) -> bool:
    """Return whether the settings allow vLLM's sleep mode, which gives memory back between steps."""
    asked = [settings.get(key) for key in settings.matching(r"actor_rollout_ref\.rollout\..*enable_sleep_mode")]
    return settings.truth(FREE_CACHE_ENGINE) and False not in asked


def is_separate(settings: Settings) -> bool:
    """Return whether verl's v1 trainer has rollout servers on separate NPUs. Other servers may still share the
    trainer's NPUs."""
    return settings.truth("trainer.use_v1") and settings.text(MODE) == "separate_async"


def own_rollout(settings: Settings) -> tuple[str, str]:
    """Return the two configuration keys that set the size of a rollout with separate NPUs: the number of NPUs per
    node, and the number of nodes."""
    if is_separate(settings):
        return f"{ROLLOUT}.n_gpus_per_node", f"{ROLLOUT}.nnodes"
    return ROLLOUT_NPUS, ROLLOUT_NODES


def rollout_npus(settings: Settings) -> int:
    """Return the number of NPUs that only the rollout uses. It is 0 if the rollout shares the trainer's NPUs."""
    npus, nodes = own_rollout(settings)
    return max(settings.whole(npus), 0) * size(settings, nodes)


def has_critic(settings: Settings) -> bool:
    """Return whether a critic is trained. Source: verl/trainer/ppo/utils.py, `need_critic`."""
    enabled = settings.get("critic.enable")
    if enabled is not None:
        return settings.truth("critic.enable")
    return settings.text(ESTIMATOR) in ("gae", "")


def has_reference(settings: Settings) -> bool:
    """Return whether a separate reference model is kept beside the actor."""
    wanted = settings.truth("algorithm.use_kl_in_reward") or settings.truth(f"{ACTOR}.use_kl_loss")
    # With LoRA, the actor without its adapters is the reference.
    ranks = (settings.whole(f"{MODEL}.lora_rank"), settings.whole(f"{MODEL}.lora.rank"))
    return wanted and max(ranks) <= 0
