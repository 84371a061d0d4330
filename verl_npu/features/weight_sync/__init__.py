"""Weights go from trainer to rollout over HCCL, checked on every rank.

`transport` moves bytes between ranks and knows nothing of verl: `transport.sync` is one sync. `engines` are the takers
of the weights. `patches` put the two in the place of what upstream does.
"""

from __future__ import annotations

from ...registry.patch import Feature
from .feature import weight_sync
from .patches import checkpoint_engine, vllm_model  # noqa: F401  # they declare the patches

__all__ = ["weight_sync"]


@weight_sync.part("recipe", count=17)
def _recipes() -> Feature:
    from .patches.recipes import recipes

    return recipes
