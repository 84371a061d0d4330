"""The whole job knows that it runs on NPUs, and a job that cannot be placed says so."""

from __future__ import annotations

# Each adds its patches to the feature.
from . import ordinal, verdict
from .feature import device
from .placement import PlacementError
from .setting import DeviceContradictionError

__all__ = ["DeviceContradictionError", "PlacementError", "device", "ordinal", "verdict"]
