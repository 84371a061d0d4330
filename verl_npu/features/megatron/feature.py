"""The feature that all modules of this folder declare their patches on."""

from __future__ import annotations

from ...registry.patch import Feature

__all__ = ["megatron"]

megatron = Feature("megatron", "MindSpeed's overrides are checked, reach every worker in time, and never half apply")
