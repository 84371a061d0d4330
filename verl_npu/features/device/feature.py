"""The feature that the modules beside this one add their patches to."""

from __future__ import annotations

from ...registry.patch import Feature

__all__ = ["DEFAULT", "device"]

device = Feature("device", "trainer.device left at its default ends on the NPU; a job that cannot be placed ends")

DEFAULT = "cuda"
"""What upstream's configurations and signatures say where nobody chose a device."""
