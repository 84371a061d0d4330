"""Print the costs of Megatron-core under MindSpeed over two NPUs: `python -m tests.phantom.megatron [CASE…]`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from mindspeed.megatron_adaptor import repatch
from torch import Tensor

from .measuring import Case, run_ranks

# verl does this before it makes a model; the rest of MindSpeed is unchanged.
repatch({"use_flash_attn": True, "moe_grouped_gemm": True})

from megatron.core import parallel_state, tensor_parallel  # noqa: E402  # after MindSpeed's patches
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402

HIDDEN, VOCABULARY, LENGTH, MICRO_BATCHES = 128, 1024, 64, 4


def _config(**changes: Any) -> TransformerConfig:
    sizes = {"num_layers": 4, "hidden_size": HIDDEN, "ffn_hidden_size": 256, "num_attention_heads": 4}
    sizes |= {"num_query_groups": 2, "kv_channels": 32, "bf16": True, "params_dtype": torch.bfloat16}
    sizes |= {"pipeline_dtype": torch.bfloat16, "add_bias_linear": False, "gated_linear_unit": True}
    sizes |= {"activation_func": torch.nn.functional.silu, "normalization": "RMSNorm", "qk_layernorm": True}
    sizes |= {"hidden_dropout": 0.0, "attention_dropout": 0.0, "variable_seq_lengths": True}
    return TransformerConfig(**{**sizes, **changes})


def _model(config: TransformerConfig) -> Any:
    model = GPTModel(
        config,
        get_gpt_decoder_block_spec(config, use_transformer_engine=True),
        VOCABULARY,
        LENGTH,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        position_embedding_type="rope",
        rotary_base=1_000_000,
    )
    # A router of zeros chooses the same experts with and without values.
    for name, weight in model.named_parameters():
        if name.endswith("router.weight"):
            torch.nn.init.zeros_(weight)
            weight.requires_grad_(False)
    return model.npu()


def _micro_batches() -> Iterator[Tensor]:
    while True:
        yield torch.arange(2 * LENGTH).view(2, LENGTH).npu() % VOCABULARY


def _forward(
    batches: Iterator[Tensor], model: Any
) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, dict[str, Any]]]]:
    ids = next(batches)
    places = torch.arange(LENGTH).expand(2, LENGTH).npu()
    mask = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool, device="npu").triu(1)
    return model(ids, places, mask, labels=ids), lambda losses: (losses.float().mean(), {})


def _training(parallel: dict[str, int], distributed: bool = False, **changes: Any) -> Case:
    """Return a case of two steps; in the second the optimizer's state is there."""

    def case() -> None:
        parallel_state.destroy_model_parallel()
        parallel_state._POSITION_EMBEDDING_GLOBAL_RANKS = None  # Megatron forgets to reset this
        parallel_state.initialize_model_parallel(**parallel)
        tensor_parallel.model_parallel_cuda_manual_seed(0)
        config = _config(**parallel, **changes)
        how = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=distributed)
        model = DistributedDataParallel(config, how, _model(config))
        config.finalize_model_grads_func = finalize_model_grads
        optimizer = get_megatron_optimizer(
            OptimizerConfig(
                # The norm is measured and nothing is clipped, because the norm of phantoms is 0.
                lr=1e-3,
                bf16=True,
                params_dtype=torch.bfloat16,
                clip_grad=1e9,
                use_distributed_optimizer=distributed,
            ),
            [model],
        )
        for _ in range(2):
            model.zero_grad_buffer()
            optimizer.zero_grad()
            get_forward_backward_func()(
                forward_step_func=_forward,
                data_iterator=_micro_batches(),
                model=[model],
                num_microbatches=MICRO_BATCHES,
                seq_length=LENGTH,
                micro_batch_size=2,
            )
            optimizer.step()

    return case


_TENSOR = {"tensor_model_parallel_size": 2}
_EXPERTS = {"expert_model_parallel_size": 2}
_MIXTURE: dict[str, Any] = {
    "num_moe_experts": 4,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 64,
    "moe_grouped_gemm": True,
    "moe_token_dispatcher_type": "alltoall",
    "moe_router_load_balancing_type": "none",
}
_ALL: dict[str, Any] = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}

CASES: dict[str, Case] = {
    "data parallel": _training({}),
    "distributed optimizer": _training({}, distributed=True),
    "tensor parallel": _training(_TENSOR),
    "tensor and sequence parallel": _training(_TENSOR, sequence_parallel=True),
    "tensor parallel, recomputation": _training(_TENSOR, **_ALL),
    "pipeline": _training({"pipeline_model_parallel_size": 2}),
    "pipeline, recomputation": _training({"pipeline_model_parallel_size": 2}, **_ALL),
    "experts": _training({}, **_MIXTURE),
    "expert parallel": _training(_EXPERTS, **_MIXTURE),
    "expert parallel, distributed optimizer": _training(_EXPERTS, distributed=True, **_MIXTURE),
    "expert and tensor parallel": _training(
        _TENSOR | _EXPERTS | {"expert_tensor_parallel_size": 1}, sequence_parallel=True, **_MIXTURE
    ),
}

if __name__ == "__main__":
    run_ranks(CASES)
