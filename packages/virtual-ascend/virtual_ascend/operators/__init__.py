"""Reference operators of torch_npu, written in plain torch from the documentation of op-plugin.

They run on the device of their tensors. They are differentiable if the real operator has an autograd formula
(op-plugin's derivatives.yaml); otherwise, the backward pass raises an error.
"""

from __future__ import annotations

from .attention import npu_fusion_attention
from .dense import (
    fast_gelu,
    npu_add_rms_norm,
    npu_apply_adam_w,
    npu_apply_rotary_pos_emb,
    npu_bmmV2,
    npu_cross_entropy_loss,
    npu_fast_gelu,
    npu_gelu,
    npu_linear,
    npu_mrope,
    npu_rms_norm,
    npu_rotary_mul,
    npu_scaled_masked_softmax,
    npu_silu,
    npu_swiglu,
    npu_transpose_batchmatmul,
)
from .experts import (
    _npu_moe_token_unpermute_with_routing_map,
    npu_grouped_matmul,
    npu_grouped_matmul_add_,
    npu_moe_compute_expert_tokens,
    npu_moe_finalize_routing,
    npu_moe_gating_top_k,
    npu_moe_gating_top_k_softmax,
    npu_moe_init_routing,
    npu_moe_init_routing_v2,
    npu_moe_token_permute,
    npu_moe_token_permute_with_routing_map,
    npu_moe_token_permute_with_routing_map_grad,
    npu_moe_token_unpermute,
    npu_moe_token_unpermute_with_routing_map,
    npu_moe_token_unpermute_with_routing_map_grad,
)
from .inference import (
    _npu_fused_infer_attention_score_get_max_workspace,
    _npu_fused_infer_attention_score_v2_get_max_workspace,
    npu_attention_update,
    npu_fused_infer_attention_score,
    npu_fused_infer_attention_score_out,
    npu_fused_infer_attention_score_v2,
    npu_fused_infer_attention_score_v2_out,
    npu_interleave_rope,
    npu_kv_rmsnorm_rope_cache,
    npu_scatter_pa_kv_cache,
)
from .layout import get_npu_format, get_storage_size, npu_dtype_cast, npu_format_cast, npu_format_cast_
from .quantization import npu_dynamic_quant, npu_quantize
from .ring import npu_fusion_attention_grad, npu_ring_attention_update
from .sampling import npu_top_k_top_p

OVERLOADS = {
    "npu_fused_infer_attention_score.out": npu_fused_infer_attention_score_out,
    "npu_fused_infer_attention_score_v2.out": npu_fused_infer_attention_score_v2_out,
}
"""The overloads that have separate functions."""

__all__ = [
    "_npu_fused_infer_attention_score_get_max_workspace",
    "_npu_fused_infer_attention_score_v2_get_max_workspace",
    "_npu_moe_token_unpermute_with_routing_map",
    "fast_gelu",
    "get_npu_format",
    "get_storage_size",
    "npu_add_rms_norm",
    "npu_apply_adam_w",
    "npu_apply_rotary_pos_emb",
    "npu_attention_update",
    "npu_bmmV2",
    "npu_cross_entropy_loss",
    "npu_dtype_cast",
    "npu_dynamic_quant",
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
    "npu_interleave_rope",
    "npu_kv_rmsnorm_rope_cache",
    "npu_linear",
    "npu_moe_compute_expert_tokens",
    "npu_moe_finalize_routing",
    "npu_moe_gating_top_k",
    "npu_moe_gating_top_k_softmax",
    "npu_moe_init_routing",
    "npu_moe_init_routing_v2",
    "npu_moe_token_permute",
    "npu_moe_token_permute_with_routing_map",
    "npu_moe_token_permute_with_routing_map_grad",
    "npu_moe_token_unpermute",
    "npu_moe_token_unpermute_with_routing_map",
    "npu_moe_token_unpermute_with_routing_map_grad",
    "npu_mrope",
    "npu_quantize",
    "npu_ring_attention_update",
    "npu_rms_norm",
    "npu_rotary_mul",
    "npu_scaled_masked_softmax",
    "npu_scatter_pa_kv_cache",
    "npu_silu",
    "npu_swiglu",
    "npu_top_k_top_p",
    "npu_transpose_batchmatmul",
]
