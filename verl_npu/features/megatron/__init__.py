"""MindSpeed-backed Megatron: overrides that are checked, reach every worker, and leave no half-patched process."""

from __future__ import annotations

from . import adaptor, checkpoints, engines, heads, kernels, workers  # noqa: F401  # for the patches that they declare
from .declared import megatron

__all__ = ["megatron"]
