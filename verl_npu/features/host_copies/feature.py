"""The feature that the modules beside this one add their patches to."""

from __future__ import annotations

from ...registry.patch import Feature

__all__ = ["host_copies"]

host_copies = Feature("host_copies", "Copies from an NPU to the host are finished before the host reads them.")
