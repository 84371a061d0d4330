"""The chip that virtual-ascend emulates: an Ascend 910B. Most training programs run on this chip."""

from __future__ import annotations

NAME = "Ascend910B2"
"""The chip's name in AscendCL and npu-smi."""

VERSION = 221
"""The number that torch_npu's `get_soc_version` returns for the chip."""

CUBE_CORES = 24
VECTOR_CORES = 48

L2_CACHE = 192 << 20
"""The size of the L2 cache in bytes."""
