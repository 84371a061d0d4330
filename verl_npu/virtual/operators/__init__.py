"""Reference operators of torch_npu: what the documentation of op-plugin says, in plain torch.

They run wherever their tensors are. Differentiable exactly where the real operator has an autograd formula
(op-plugin's derivatives.yaml); elsewhere a gradient raises.
"""

from __future__ import annotations

from verl_npu.virtual.operators.activation import npu_gelu, npu_swiglu
from verl_npu.virtual.operators.attention import npu_fusion_attention
from verl_npu.virtual.operators.grouped import npu_grouped_matmul
from verl_npu.virtual.operators.layout import npu_format_cast, npu_format_cast_
from verl_npu.virtual.operators.loss import npu_cross_entropy_loss
from verl_npu.virtual.operators.norm import npu_add_rms_norm, npu_rms_norm
from verl_npu.virtual.operators.optimizer import npu_apply_adam_w
from verl_npu.virtual.operators.permutation import npu_moe_token_permute, npu_moe_token_unpermute
from verl_npu.virtual.operators.rotary import npu_rotary_mul

__all__ = [
    "npu_add_rms_norm",
    "npu_apply_adam_w",
    "npu_cross_entropy_loss",
    "npu_format_cast",
    "npu_format_cast_",
    "npu_fusion_attention",
    "npu_gelu",
    "npu_grouped_matmul",
    "npu_moe_token_permute",
    "npu_moe_token_unpermute",
    "npu_rms_norm",
    "npu_rotary_mul",
    "npu_swiglu",
]
