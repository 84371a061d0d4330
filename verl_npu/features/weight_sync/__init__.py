"""Weights go from trainer to rollout over HCCL, checked on every rank.

`transport` moves bytes between ranks and knows nothing of verl: `transport.sync` is one sync. `engines` are the takers
of the weights. `patches` put the two in the place of what upstream does.
"""

from __future__ import annotations

from .feature import weight_sync
from .patches import checkpoint_engine, recipes, vllm_model  # noqa: F401  # they declare the patches

__all__ = ["weight_sync"]
