"""Every process of a job decides alike, and the trainer sees that it did before it starts."""

from __future__ import annotations

from . import comparison, forwarding  # noqa: F401  # for the patches that they declare
from .feature import fleet

__all__ = ["fleet"]
