"""The feature that the modules beside this one add their patches to."""

from __future__ import annotations

from ...registry.patch import Feature

__all__ = ["rollout"]

rollout = Feature(
    "rollout", "Rollout engines start only with settings that work, and answer each prompt as often as configured."
)
