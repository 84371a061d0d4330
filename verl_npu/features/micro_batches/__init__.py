"""Micro-batches of a dynamic batch, none of which holds more tokens than its budget if the user asks for that."""

from __future__ import annotations

from . import budget  # noqa: F401  # it declares the patches
from .feature import micro_batches

__all__ = ["micro_batches"]
