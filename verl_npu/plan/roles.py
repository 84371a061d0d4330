"""Which roles a script's trainer has besides its actor. Source: verl/trainer/ppo/utils.py, `need_critic`."""

from __future__ import annotations

from ..rehearse.settings import Settings

__all__ = ["has_critic", "has_reference"]

_ACTOR_REF = "actor_rollout_ref"


def has_critic(settings: Settings) -> bool:
    """Return whether a critic is trained."""
    enabled = settings.get("critic.enable")
    if enabled is not None:
        return settings.truth("critic.enable")
    return settings.text("algorithm.adv_estimator") in ("gae", "")


def has_reference(settings: Settings) -> bool:
    """Return whether a reference is kept beside the actor."""
    wanted = settings.truth("algorithm.use_kl_in_reward") or settings.truth(f"{_ACTOR_REF}.actor.use_kl_loss")
    # With LoRA the actor without its adapters is the reference.
    ranks = (settings.whole(f"{_ACTOR_REF}.model.lora_rank"), settings.whole(f"{_ACTOR_REF}.model.lora.rank"))
    return wanted and max(ranks) <= 0
