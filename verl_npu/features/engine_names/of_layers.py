"""The names of vLLM's parallel layers by which the proof of weights reckons what a rank holds of them."""

from __future__ import annotations

from .name import Form, Name

__all__ = ["LAYERS"]

_LINEAR = "vllm.model_executor.layers.linear"
_VOCABULARY = "vllm.model_executor.layers.vocab_parallel_embedding"
_EXPERTS = "vllm.model_executor.layers.fused_moe"
_SHARE = "features.weight_sync.engines.share"
_LAYOUT = "features.weight_sync.engines.layout"
_PROOF = "features.weight_sync.engines.proof"
_WRONG = "VERL_NPU_WEIGHT_SYNC_CHECK=engine ends with an AttributeError that names it"
_WHOLE = "VERL_NPU_WEIGHT_SYNC_CHECK=engine takes the layer for one that is not divided, and tells that it differs"


def _layer(place: str) -> Name:
    name = place.rpartition(":")[2]
    return Name(name, (place,), (f"{_SHARE}:{name}",), _WHOLE)


def _size(place: str, *classes: str, since: str = "0.7.3") -> Name:
    """An attribute of a layer, which the class sets, or one that it derives from."""
    module, _, qualname = place.partition(":")
    name = qualname.rpartition(".")[2]
    places = (place, *(f"{module}:{each}.{name}" for each in classes))
    return Name(qualname, places, (f"{_SHARE}:{name}",), _WRONG, Form.SET, since=since)


LAYERS = (
    _layer(f"{_VOCABULARY}:VocabParallelEmbedding"),
    _size(f"{_VOCABULARY}:VocabParallelEmbedding.org_vocab_size"),
    _size(f"{_VOCABULARY}:VocabParallelEmbedding.shard_indices"),
    _size(f"{_VOCABULARY}:VocabParallelEmbeddingShardIndices.padded_org_vocab_start_index"),
    _size(f"{_VOCABULARY}:VocabParallelEmbeddingShardIndices.padded_org_vocab_end_index"),
    _layer(f"{_LINEAR}:ReplicatedLinear"),
    _layer(f"{_LINEAR}:ColumnParallelLinear"),
    _size(f"{_LINEAR}:MergedColumnParallelLinear.output_sizes"),
    _size(f"{_LINEAR}:LinearBase.output_size"),
    _size(f"{_LINEAR}:ColumnParallelLinear.tp_size", "LinearBase"),
    _layer(f"{_LINEAR}:QKVParallelLinear"),
    _size(f"{_LINEAR}:QKVParallelLinear.num_heads"),
    _size(f"{_LINEAR}:QKVParallelLinear.num_kv_heads"),
    _size(f"{_LINEAR}:QKVParallelLinear.total_num_heads"),
    _size(f"{_LINEAR}:QKVParallelLinear.total_num_kv_heads"),
    _size(f"{_LINEAR}:QKVParallelLinear.num_kv_head_replicas"),
    _size(f"{_LINEAR}:QKVParallelLinear.head_size"),
    _layer(f"{_LINEAR}:RowParallelLinear"),
    _size(f"{_LINEAR}:RowParallelLinear.input_size_per_partition"),
    Name(
        "LinearBase.tp_rank",
        (f"{_LINEAR}:LinearBase.tp_rank",),
        (f"{_SHARE}:tp_rank",),
        "vLLM is asked for the rank of the process instead",
        Form.SET,
        since="0.11.0",
    ),
    Name(
        "get_tensor_model_parallel_rank",
        ("vllm.distributed.parallel_state:get_tensor_model_parallel_rank",),
        (f"{_SHARE}:vllm.distributed", f"{_SHARE}:get_tensor_model_parallel_rank"),
        _WRONG,
        arguments=0,
    ),
    Name(
        "QKVParallelLinear.v_head_size",
        (f"{_LINEAR}:QKVParallelLinear.v_head_size",),
        (f"{_SHARE}:v_head_size",),
        "a head of values is as wide as one of keys",
        Form.SET,
        since="0.18.0",
    ),
    Name(
        "the ranks of a layer of experts",
        (f"{_EXPERTS}.layer:FusedMoE.tp_rank", f"{_EXPERTS}.config:FusedMoEConfig.tp_rank"),
        (f"{_SHARE}:tp_rank", f"{_LAYOUT}:tp_size", f"{_LAYOUT}:moe_config"),
        "vLLM is asked for the rank of the process instead",
        Form.SET,
        since="0.9.1",
    ),
    Name(
        "the map of a layer's experts",
        (f"{_EXPERTS}.layer:FusedMoE.expert_map", f"{_EXPERTS}.routed_experts:RoutedExperts.expert_map"),
        (f"{_LAYOUT}:expert_map",),
        "the rank is taken to hold the first experts, and VERL_NPU_WEIGHT_SYNC_CHECK=engine tells that they differ",
        Form.SET,
        since="0.9.1",
    ),
    Name(
        "hf_to_vllm_mapper of a model",
        ("vllm.model_executor.models.qwen2_vl:Qwen2VLForConditionalGeneration.hf_to_vllm_mapper",),
        (f"{_PROOF}:hf_to_vllm_mapper",),
        "VERL_NPU_WEIGHT_SYNC_CHECK=engine does not find the weights of models with images",
        Form.SET,
    ),
    Name(
        "WeightsMapper.apply",
        ("vllm.model_executor.models.utils:WeightsMapper.apply",),
        (f"{_PROOF}:mapper.apply",),
        _WRONG,
        arguments=1,
    ),
)
"""Releases are vLLM's."""
