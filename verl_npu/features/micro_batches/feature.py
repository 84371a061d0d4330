"""The feature that the modules beside this one add their patches to."""

from __future__ import annotations

from ...registry.patch import Feature

__all__ = ["micro_batches"]

micro_batches = Feature(
    "micro_batches", "No micro-batch of a dynamic batch exceeds its token budget, if VERL_NPU_TOKEN_BUDGET=1."
)
