"""Copies between NPUs and the host, which must be waited for."""

from __future__ import annotations

from . import batches  # noqa: F401  # it declares the patches
from .feature import host_copies

__all__ = ["host_copies"]
