"""The feature, and what the modules beside this one declare its patches for."""

from __future__ import annotations

from ...registry.patch import Feature

__all__ = ["megatron", "over_megatron"]

megatron = Feature(
    "megatron",
    "each worker's overrides are checked, reach MindSpeed in time, and apply as a whole or not at all; early workers "
    "keep their batches on the host",
)
over_megatron = megatron.more()
