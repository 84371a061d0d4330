"""Weights go from trainer to rollout over HCCL, checked on every rank.

`transport` moves bytes between ranks and knows nothing of verl: `transport.sync` is one sync. `engines` are the takers
of the weights. `patches` put the two in the place of what upstream does.
"""

from __future__ import annotations

from ...registry.patch import Feature

weight_sync = Feature("weight_sync", "weights go from trainer to rollout over HCCL, checked on every rank")

GROUP = "actor_rollout"
"""The name of upstream's group of trainers and rollouts."""


@weight_sync.part("recipe", count=17)
def _recipes() -> Feature:
    from .patches.recipes import recipes

    return recipes
