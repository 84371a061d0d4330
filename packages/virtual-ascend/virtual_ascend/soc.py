"""The chip that the virtual Ascend pretends to be: an Ascend 910B, on which most training programs run."""

from __future__ import annotations

NAME = "Ascend910B2"
"""Its name in AscendCL and npu-smi."""

VERSION = 221
"""Its number in torch_npu's `get_soc_version`."""

CUBE_CORES = 24
VECTOR_CORES = 48

L2_CACHE = 192 << 20
"""In bytes."""
