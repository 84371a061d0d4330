"""Every process of a job gets the user's settings, and the processes are compared before training starts."""

from __future__ import annotations

from . import forwarding, patches  # noqa: F401  # they declare the patches
from .feature import fleet

__all__ = ["fleet"]
