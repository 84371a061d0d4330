"""Rollout engines: what upstream or the user asks of them, and what they can do on NPUs."""

from __future__ import annotations

from . import allocator, release, repetition  # noqa: F401  # for the patches that they declare
from .feature import rollout

__all__ = ["rollout"]
