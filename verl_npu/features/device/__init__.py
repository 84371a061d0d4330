"""Every process of a job decides for NPUs, and a job that the cluster cannot hold ends with an error."""

from __future__ import annotations

from . import choice, placement  # noqa: F401  # they declare the patches
from .feature import device

__all__ = ["device"]
