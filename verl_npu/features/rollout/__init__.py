"""Rollout engines: settings that upstream or the user gives them, and what they can do with those on NPUs."""

from __future__ import annotations

from . import (  # noqa: F401  # they declare the patches
    allocator,
    engine_arguments,
    length,
    offload,
    release,
    repetition,
    rl_mode,
    roles,
)
from .feature import rollout

__all__ = ["rollout"]
