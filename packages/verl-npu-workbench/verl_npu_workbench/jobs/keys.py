"""The keys of upstream's settings, and questions that several settings answer. A size that is not set is 1."""

from __future__ import annotations

from .settings import Settings

ROLES = "actor_rollout_ref"
"""The section of the actor, the reference, the rollout, and their model."""
ACTOR, REFERENCE, ROLLOUT, MODEL = f"{ROLES}.actor", f"{ROLES}.ref", f"{ROLES}.rollout", f"{ROLES}.model"
CRITIC = "critic"
STRATEGY = f"{ACTOR}.strategy"
MINI_BATCH = f"{ACTOR}.ppo_mini_batch_size"
PATH, PACKED = f"{MODEL}.path", f"{MODEL}.use_remove_padding"
ENGINE = f"{ROLLOUT}.name"
SAMPLES = f"{ROLLOUT}.n"
FREE_CACHE_ENGINE = f"{ROLLOUT}.free_cache_engine"
ESTIMATOR = "algorithm.adv_estimator"
DEVICE = "trainer.device"
NPUS, NODES = "trainer.n_gpus_per_node", "trainer.nnodes"
ROLLOUT_NPUS, ROLLOUT_NODES = "rollout.n_gpus_per_node", "rollout.nnodes"
"""The NPUs of the rollout, in recipes whose rollout has NPUs of its own."""
MODE = "trainer.v1.trainer_mode"
SYNC_STEP = "trainer.v1.separate_async.parameter_sync_step"
"""The number of mini-batches that are trained between two weight syncs."""
BATCH, GENERATION_BATCH, VALIDATION_BATCH = "data.train_batch_size", "data.gen_batch_size", "data.val_batch_size"
MAX_PROMPT, MAX_RESPONSE = "data.max_prompt_length", "data.max_response_length"
MAX_LENGTH = "data.max_length"
"""The length limit of a sequence in fine-tuning."""
TRAIN_FILES, VALIDATION_FILES = "data.train_files", "data.val_files"


def size(settings: Settings, key: str) -> int:
    """Return a size, or 1 if it is not set or smaller than 1."""
    return max(settings.whole(key, 1), 1)


def is_megatron(settings: Settings, role: str = ACTOR) -> bool:
    """Tell whether a role trains with Megatron."""
    return settings.text(f"{role}.strategy") == "megatron"


def may_sleep(settings: Settings) -> bool:
    """Tell whether the settings allow vLLM's sleep mode, which gives memory back between steps."""
    asked = [settings.get(key) for key in settings.matching(r"actor_rollout_ref\.rollout\..*enable_sleep_mode")]
    return settings.truth(FREE_CACHE_ENGINE) and False not in asked


def is_separate(settings: Settings) -> bool:
    """Tell whether verl's v1 trainer has rollout servers on separate NPUs. It may also have some on its own NPUs."""
    return settings.truth("trainer.use_v1") and settings.text(MODE) == "separate_async"


def own_rollout(settings: Settings) -> tuple[str, str]:
    """Return the keys of the NPUs on a node and of the nodes, for a rollout with NPUs of its own."""
    if is_separate(settings):
        return f"{ROLLOUT}.n_gpus_per_node", f"{ROLLOUT}.nnodes"
    return ROLLOUT_NPUS, ROLLOUT_NODES


def rollout_npus(settings: Settings) -> int:
    """Return the number of the rollout's own NPUs; 0 if it shares the trainer's."""
    npus, nodes = own_rollout(settings)
    return max(settings.whole(npus), 0) * size(settings, nodes)


def has_critic(settings: Settings) -> bool:
    """Tell whether a critic is trained. Source: verl/trainer/ppo/utils.py, `need_critic`."""
    enabled = settings.get("critic.enable")
    if enabled is not None:
        return settings.truth("critic.enable")
    return settings.text(ESTIMATOR) in ("gae", "")


def has_reference(settings: Settings) -> bool:
    """Tell whether a separate reference model is kept beside the actor."""
    wanted = settings.truth("algorithm.use_kl_in_reward") or settings.truth(f"{ACTOR}.use_kl_loss")
    # With LoRA, the actor without its adapters is the reference.
    ranks = (settings.whole(f"{MODEL}.lora_rank"), settings.whole(f"{MODEL}.lora.rank"))
    return wanted and max(ranks) <= 0
