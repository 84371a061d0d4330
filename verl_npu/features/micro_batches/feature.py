"""The feature that the modules beside this one add their patches to."""

from __future__ import annotations

from ...registry.patch import Feature
from ...registry.source.probe import Mentions

__all__ = ["BOUNDED_UPSTREAM", "micro_batches"]

BOUNDED_UPSTREAM = Mentions("verl.utils.seqlen_balancing", "ValueError")
"""Upstream's own bound, from v0.9.1 on, raises it for a sequence that is too long; before, asserts do."""

micro_batches = Feature(
    "micro_batches", "No micro-batch of a dynamic batch exceeds its token budget, if VERL_NPU_TOKEN_BUDGET=1."
)
