"""The feature that the modules beside this one add their patches to."""

from __future__ import annotations

from ...registry.patch import Feature

device = Feature(
    "device", "Jobs run on NPUs unless the user chose another device, and a job that cannot be placed is refused."
)

DEFAULT_DEVICE = "cuda"
"""What upstream's configurations and signatures contain if nobody chose a device."""
