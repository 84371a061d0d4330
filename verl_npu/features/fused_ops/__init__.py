"""torch_npu's fused operators in the Qwen models: norms, gated layers, rotary embeddings, mixtures of experts.

Upstream at its oldest pin has almost none of them. Later some are wrong, and if one model's file is missing, none is
used. Here each patch stands by itself, and upstream's code runs for whatever an operator cannot do.
"""

from __future__ import annotations

from . import experts, fsdp2, layers  # noqa: F401  # they declare the patches
from .feature import fused_ops

__all__ = ["fused_ops"]
