"""The feature, to which the modules in `patches` add their patches."""

from __future__ import annotations

from ...registry.patch import Feature

__all__ = ["megatron"]

megatron = Feature(
    "megatron",
    "each worker's overrides are checked, reach MindSpeed in time, and apply as a whole or not at all; early workers "
    "keep their batches on the host",
)
