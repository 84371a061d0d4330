"""Megatron on Ascend, through MindSpeed: each worker's overrides are checked and reach MindSpeed in time.

`request` says what a worker asks for, `contract` what a MindSpeed understands, and `rules` what would fail: none of
them imports MindSpeed or Megatron. `repatch` gives the overrides to MindSpeed, and takes back what it did if it fails.
`workers`, `mindspeed` and `upstream` declare the patches of that, and `batches` those that keep batches on the host.
"""

from __future__ import annotations

from ...registry.patch import Feature

megatron = Feature(
    "megatron",
    "each worker's overrides are checked, reach MindSpeed in time, and apply as a whole or not at all; early workers "
    "keep their batches on the host",
)
over_megatron = megatron.more()
"""What the modules beside this one declare the patches for."""


# Whatever they patch imports Megatron or MindSpeed itself, or is called by what does.
@megatron.part("megatron", "mindspeed", count=33)
def _over_megatron() -> Feature:
    from . import batches, mindspeed, upstream, workers  # noqa: F401  # they declare them

    return over_megatron
