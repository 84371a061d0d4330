"""Weights go from trainer to rollout over HCCL, checked on every rank.

`transport` moves bytes between ranks and knows nothing of verl: `transport.sync` is one sync. `engines` are the takers
of the weights. `patches` put the two in the place of what upstream does.
"""

from __future__ import annotations

from .feature import weight_sync
from .patches import checkpoint_engine, colocation, fully_async_policy, gkd, loader, one_step_off_policy, readback

__all__ = [
    "checkpoint_engine",
    "colocation",
    "fully_async_policy",
    "gkd",
    "loader",
    "one_step_off_policy",
    "readback",
    "weight_sync",
]
