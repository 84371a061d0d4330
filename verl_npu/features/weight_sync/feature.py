"""The feature, to which the modules beside this one add their patches."""

from __future__ import annotations

from ...registry.patch import Feature

__all__ = ["GROUP", "weight_sync"]

weight_sync = Feature("weight_sync", "weights go from trainer to rollout over HCCL, checked on every rank")

# As upstream calls its group of trainers and rollouts.
GROUP = "actor_rollout"
