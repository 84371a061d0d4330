"""The feature that the modules in `patches` add their patches to."""

from __future__ import annotations

from ...registry.patch import Feature

weight_sync = Feature("weight_sync", "weights go from trainer to rollout over HCCL, checked on every rank")

GROUP = "actor_rollout"
"""The name of upstream's group of trainers and rollouts."""
