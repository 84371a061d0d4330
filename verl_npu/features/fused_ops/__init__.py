"""torch_npu's fused operators in the Qwen models: norms, gated layers, rotary embeddings, mixtures of experts.

Upstream has almost none at its oldest pin, some of them wrong later, and all of them or none where a model's file is
missing. Here each stands by itself, and whatever an operator cannot do goes upstream's way.
"""

from __future__ import annotations

from . import experts, mlp, norm, rotary
from .feature import fused_ops

__all__ = ["experts", "fused_ops", "mlp", "norm", "rotary"]
