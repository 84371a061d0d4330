"""DAPO through verl's recipe: GRPO's workers with the recipe's own trainer, and the settings that differ from GRPO."""

from __future__ import annotations

from dataclasses import replace

from harness import pins
from harness.errors import BadInput
from harness.jobs import grpo
from harness.jobs.base import AGREED, Plan


def arguments(plan: Plan) -> list[str]:
    """Return the GRPO command line, with the settings of the recipe appended. On Hydra's command line, later settings
    override earlier settings.

    Raise BadInput if there is no checkout, because verl's wheels do not include the recipes.
    """
    if plan.checkout is None:
        raise BadInput(
            "--job dapo: verl's wheels do not include the recipe. Clone verl at the pin, and pass the clone with "
            "--verl PATH"
        )
    # At 796871d7 a reference model over FSDP2 fails on any device: it calls `shard`, which FSDP2 does not have.
    strategy = "fsdp" if plan.pin.name == "796871d7" else "fsdp2"
    tokens = (64 + 16) * grpo.PROMPTS * grpo.ANSWERS // 2 if plan.generated else 8192
    settings: dict[str, object] = {
        # The recipe's own path is relative to the working directory of the job.
        "hydra.searchpath": f"[file://{plan.checkout / 'verl' / 'trainer' / 'config'}]",
        # More prompts than a step takes, as in upstream's scripts, because groups with equal rewards are omitted.
        "data.gen_batch_size": 2 * grpo.PROMPTS,
        "algorithm.filter_groups.enable": True,
        "algorithm.filter_groups.metric": "seq_reward",
        "algorithm.filter_groups.max_num_gen_batches": 20,
        "reward_model.overlong_buffer.enable": True,
        "reward_model.overlong_buffer.len": 4 if plan.generated else 64,
        "reward_model.overlong_buffer.penalty_factor": 0.1,
        "actor_rollout_ref.actor.strategy": strategy,
        "actor_rollout_ref.ref.strategy": strategy,
        "critic.strategy": strategy,
        "actor_rollout_ref.actor.clip_ratio_low": 0.2,
        "actor_rollout_ref.actor.clip_ratio_high": 0.28,
        "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
        "actor_rollout_ref.model.use_remove_padding": True,
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": tokens,
        "actor_rollout_ref.ref.log_prob_use_dynamic_bsz": True,
        "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": tokens,
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": True,
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": tokens,
    }
    _, _, *shared = grpo.arguments(plan)
    return ["-m", "recipe.dapo.main_dapo", *shared, *(f"{key}={value}" for key, value in settings.items())]


JOB = replace(grpo.JOB, name="dapo", arguments=arguments, lines=(AGREED,), engines=(pins.SMALL,))
