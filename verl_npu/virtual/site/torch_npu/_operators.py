"""The operators `torch_npu.npu_*`: ours, as far as the pretended version has them, and the names of those that are not
written."""

from __future__ import annotations

from torch_npu._unimplemented import not_implemented
from verl_npu.virtual import failing, operators, schemas
from verl_npu.virtual.loading import extension
from verl_npu.virtual.settings import Settings

# Public operators of torch_npu that verl, transformers, MindSpeed or vllm-ascend name (facts of op-plugin's operator
# list).
MISSING = (
    "npu_add_layer_norm",
    "npu_add_rms_norm_cast",
    "npu_add_rms_norm_quant",
    "npu_all_gather_base_mm",
    "npu_alltoallv_gmm",
    "npu_anti_quant",
    "npu_attention_update",
    "npu_bmmV2",
    "npu_clear_float_status",
    "npu_convert_weight_to_int4pack",
    "npu_deep_norm",
    "npu_dequant_swiglu_quant",
    "npu_dropout_with_add_softmax",
    "npu_dynamic_quant",
    "npu_ffn",
    "npu_fusion_attention_v2",
    "npu_fusion_attention_v3",
    "npu_gather_sparse_index",
    "npu_geglu",
    "npu_get_float_status",
    "npu_gmm_alltoallv",
    "npu_group_norm_silu",
    "npu_grouped_matmul_finalize_routing",
    "npu_grouped_matmul_swiglu_quant",
    "npu_incre_flash_attention",
    "npu_interleave_rope",
    "npu_kv_rmsnorm_rope_cache",
    "npu_layer_norm_eval",
    "npu_linear",
    "npu_mm_all_reduce_base",
    "npu_mm_reduce_scatter_base",
    "npu_moe_distribute_combine",
    "npu_moe_distribute_combine_v2",
    "npu_moe_distribute_dispatch",
    "npu_moe_distribute_dispatch_v2",
    "npu_moe_init_routing",
    "npu_moe_re_routing",
    "npu_mrope",
    "npu_multi_head_attention",
    "npu_prefetch",
    "npu_prompt_flash_attention",
    "npu_quant_matmul",
    "npu_quant_scatter",
    "npu_quantize",
    "npu_rope_quant_kvcache",
    "npu_scaled_masked_softmax",
    "npu_scatter_nd_update_",
    "npu_scatter_pa_kv_cache",
    "npu_swiglu_quant",
    "npu_top_k_top_p",
    "npu_trans_quant_param",
    "npu_transpose",
    "npu_transpose_batchmatmul",
    "npu_weight_quant_batchmatmul",
    "_npu_flash_attention",
    "_npu_paged_attention",
    "_npu_reshape_and_cache",
    "_npu_rotary_embedding",
    "_npu_silu_and_mul",
    "npu_set_option",
    "get_npu_format",
)

_settings = Settings.read()
_written = failing.wrap(
    {name: getattr(operators, name) for name in operators.__all__}, _settings.faults, extension().rank
)
# As in torch_npu, `torch_npu.npu_x` is `torch.ops.npu.npu_x`: torch itself checks the arguments against the schema.
_registered = schemas.register(_written, _settings.torch_npu_version)
IMPLEMENTED = tuple(_registered)

globals().update(_registered)
globals().update({name: not_implemented(f"torch_npu.{name}") for name in MISSING})

__all__ = ["IMPLEMENTED", "MISSING"]
__all__ += IMPLEMENTED
__all__ += MISSING
