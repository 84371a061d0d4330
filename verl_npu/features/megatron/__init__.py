"""Megatron on Ascend, through MindSpeed: each worker's overrides are checked and reach MindSpeed in time.

`request` says what a worker asks for, `contract` what a MindSpeed understands, and `rules` what would fail: none of
them imports MindSpeed or Megatron. `repatch` gives the overrides to MindSpeed, and takes back what it did if it fails.
`workers`, `mindspeed` and `upstream` declare the patches of that, and `batches` those that keep batches on the host.
"""

from __future__ import annotations

from . import batches, mindspeed, upstream, workers  # noqa: F401  # they declare the patches
from .feature import megatron

__all__ = ["megatron"]
