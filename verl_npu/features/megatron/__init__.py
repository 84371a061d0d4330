"""MindSpeed-backed Megatron: overrides that are checked, reach every worker, and leave no half-patched process."""

from __future__ import annotations

from . import (  # noqa: F401  # for the patches that they declare
    adaptor,
    bridges,
    checkpoints,
    engines,
    heads,
    kernels,
    workers,
)
from .feature import megatron

__all__ = ["megatron"]
