"""The feature that the modules beside this one add their patches to."""

from __future__ import annotations

from ...registry.patch import Feature

__all__ = ["rollout"]

rollout = Feature("rollout", "rollout engines start with settings that work, and answer each prompt as often as asked")
