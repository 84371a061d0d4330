"""Reference operators of torch_npu: what the documentation of op-plugin says, in plain torch.

They run wherever their tensors are. Differentiable exactly where the real operator has an autograd formula
(op-plugin's derivatives.yaml); elsewhere a gradient raises.
"""

from __future__ import annotations

from verl_npu.virtual.operators.activation import (
    fast_gelu,
    npu_fast_gelu,
    npu_gelu,
    npu_scaled_masked_softmax,
    npu_silu,
    npu_swiglu,
)
from verl_npu.virtual.operators.attention import npu_fusion_attention
from verl_npu.virtual.operators.gating import npu_moe_gating_top_k, npu_moe_gating_top_k_softmax
from verl_npu.virtual.operators.grouped import npu_grouped_matmul, npu_grouped_matmul_add_
from verl_npu.virtual.operators.inference import npu_fused_infer_attention_score, npu_fused_infer_attention_score_v2
from verl_npu.virtual.operators.layout import npu_dtype_cast, npu_format_cast, npu_format_cast_
from verl_npu.virtual.operators.loss import npu_cross_entropy_loss
from verl_npu.virtual.operators.matrix import npu_bmmV2, npu_linear
from verl_npu.virtual.operators.norm import npu_add_rms_norm, npu_rms_norm
from verl_npu.virtual.operators.optimizer import npu_apply_adam_w
from verl_npu.virtual.operators.permutation import (
    npu_moe_token_permute,
    npu_moe_token_permute_with_routing_map,
    npu_moe_token_unpermute,
    npu_moe_token_unpermute_with_routing_map,
)
from verl_npu.virtual.operators.ring import npu_fusion_attention_grad, npu_ring_attention_update
from verl_npu.virtual.operators.rotary import npu_apply_rotary_pos_emb, npu_rotary_mul
from verl_npu.virtual.operators.routing import (
    npu_moe_compute_expert_tokens,
    npu_moe_finalize_routing,
    npu_moe_init_routing_v2,
)

__all__ = [
    "fast_gelu",
    "npu_add_rms_norm",
    "npu_apply_adam_w",
    "npu_apply_rotary_pos_emb",
    "npu_bmmV2",
    "npu_cross_entropy_loss",
    "npu_dtype_cast",
    "npu_fast_gelu",
    "npu_format_cast",
    "npu_format_cast_",
    "npu_fused_infer_attention_score",
    "npu_fused_infer_attention_score_v2",
    "npu_fusion_attention",
    "npu_fusion_attention_grad",
    "npu_gelu",
    "npu_grouped_matmul",
    "npu_grouped_matmul_add_",
    "npu_linear",
    "npu_moe_compute_expert_tokens",
    "npu_moe_finalize_routing",
    "npu_moe_gating_top_k",
    "npu_moe_gating_top_k_softmax",
    "npu_moe_init_routing_v2",
    "npu_moe_token_permute",
    "npu_moe_token_permute_with_routing_map",
    "npu_moe_token_unpermute",
    "npu_moe_token_unpermute_with_routing_map",
    "npu_ring_attention_update",
    "npu_rms_norm",
    "npu_rotary_mul",
    "npu_scaled_masked_softmax",
    "npu_silu",
    "npu_swiglu",
]
