"""Rollout engines: settings that upstream or the user gives them, and what they can do with those on NPUs."""

from __future__ import annotations

from . import engine_arguments, patches  # noqa: F401  # they declare the patches
from .feature import rollout

__all__ = ["rollout"]
