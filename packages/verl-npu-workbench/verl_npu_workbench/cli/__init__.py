"""The commands that this distribution adds to `verl-npu`, one module each."""

from __future__ import annotations

from .. import translations  # noqa: F401  # it is imported for what it does
