"""The settings that give one rank its part of two micro batches, and nothing that only a job has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..rehearse.settings import Settings, override
from .share import Share

__all__ = ["MODELS", "STEPS", "overrides"]

_ACTOR_REF = "actor_rollout_ref"
_ACTOR = f"{_ACTOR_REF}.actor"
MODELS = (f"{_ACTOR_REF}.model.path", "critic.model.path")
STEPS = 100
"""That a job has in a plan: its schedules count them, and the lengths of so many are drawn."""


def overrides(settings: Settings, share: Share, model: Path) -> list[str]:
    """Return them; `model` is the folder of a model without weights."""
    size = share.sequences * share.data
    changes: dict[str, object] = {
        f"{_ACTOR_REF}.rollout.n": 1,
        "data.train_batch_size": size,
        f"{_ACTOR}.ppo_mini_batch_size": size,
    }
    if "critic.ppo_mini_batch_size" in settings:
        changes["critic.ppo_mini_batch_size"] = size
    changes |= dict(_without_use(settings, share))
    # verl's other budgets default to the actor's, which may be raised.
    changes |= {batch.key: batch.size for batch in share.micro_batches if batch.dynamic}
    changes |= share.budgets
    changes |= {key: str(model) for key in MODELS if key in settings}
    changes |= dict.fromkeys(settings.ending("use_torch_compile"), False)
    changes |= dict.fromkeys(settings.ending("use_dist_checkpointing"), False)
    # The trainer counts its steps by its data.
    changes |= dict.fromkeys(settings.matching(r".*\.optim\.total_training_steps"), STEPS)
    changes |= dict.fromkeys(settings.ending("tokenizer_path"), str(model))
    contents = f"{_ACTOR}.checkpoint.save_contents"
    if contents in settings:
        changes[contents] = ["model", "optimizer", "extra"]
    return [override(key, value) for key, value in changes.items()]


def _without_use(settings: Settings, share: Share) -> Iterator[tuple[str, object]]:
    """Yield sizes that stand beside a token budget: verl uses the budget, and still wants them to divide a mini batch.

    Source: verl/workers/fsdp_workers.py, "normalized ppo_mini_batch_size … should be divisible".
    """
    for role in (_ACTOR, "critic"):
        if not settings.truth(f"{role}.use_dynamic_bsz"):
            continue
        for name, one in (("ppo_micro_batch_size_per_gpu", 1), ("ppo_micro_batch_size", share.data)):
            if settings.whole(f"{role}.{name}") > 0:
                yield f"{role}.{name}", one
