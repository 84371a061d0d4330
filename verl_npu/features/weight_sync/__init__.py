"""Weights go from trainer to rollout over HCCL, checked on every rank.

`group` brings ranks of several processes together, `metadata` and `bucket` say what is moved and in which messages,
`sync` moves it. `one_step_off_policy`, `fully_async_policy`, `gkd`, `checkpoint_engine`, `layout`,
`readback` and `release` are the patches.
"""

from ..rollout import release
from .feature import weight_sync
from .patches import checkpoint_engine, fully_async_policy, gkd, layout, one_step_off_policy, readback
from .settings import NAMES

__all__ = [
    "NAMES",
    "checkpoint_engine",
    "fully_async_policy",
    "gkd",
    "layout",
    "one_step_off_policy",
    "readback",
    "release",
    "weight_sync",
]
