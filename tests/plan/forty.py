"""Forty jobs: by the formula of `by_hand` twenty fit and twenty do not, each at least a tenth of the memory away."""

from __future__ import annotations

from .by_hand import Model, Setting

__all__ = ["FITTING", "NOT_FITTING", "config", "overrides"]

_QWEN3_06B = Model("qwen3", 1024, 3072, 28, 16, 8, tied=True)
_QWEN25_7B = Model("qwen2", 3584, 18944, 28, 28, 4, words=152064)
_QWEN3_8B = Model("qwen3", 4096, 12288, 36, 32, 8)
_QWEN25_32B = Model("qwen2", 5120, 27648, 64, 40, 8, words=152064)
_EXPERTS_30B = Model("qwen3_moe", 2048, 768, 48, 32, 4, experts=128, chosen=8)
_EXPERTS_8B = Model("qwen3_moe", 2048, 768, 12, 32, 4, experts=128, chosen=8)
_WIDE_6B = Model("qwen3", 8192, 28672, 4, 64, 8)
_WIDE_9B = Model("qwen3", 8192, 28672, 8, 64, 8)
_NARROW_1B = Model("qwen2", 2048, 11008, 8, 16, 2)

FITTING: tuple[Setting, ...] = ()
NOT_FITTING: tuple[Setting, ...] = ()


def config(model: Model) -> dict[str, object]:
    """Return a model's config.json."""
    found: dict[str, object] = {
        "model_type": model.kind,
        "hidden_size": model.hidden,
        "intermediate_size": model.inner,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.key_heads,
        "head_dim": model.head,
        "vocab_size": model.words,
        "tie_word_embeddings": model.tied,
        "max_position_embeddings": 65536,
    }
    if model.experts:
        found |= {
            "num_experts": model.experts,
            "num_experts_per_tok": model.chosen,
            "moe_intermediate_size": model.inner,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    return found


def overrides(setting: Setting) -> list[str]:
    """Return the job's command line after `python3 -m verl.trainer.main_ppo`."""
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    nodes = -(-setting.npus // 8)
    found: dict[str, object] = {
        "algorithm.adv_estimator": "gae" if setting.critic else "grpo",
        "data.train_batch_size": 256,
        "data.max_prompt_length": setting.prompt,
        "data.max_response_length": setting.response,
        "actor_rollout_ref.model.path": "/models/of-a-setting",
        "actor_rollout_ref.model.use_remove_padding": True,
        "actor_rollout_ref.model.enable_gradient_checkpointing": setting.recompute,
        "actor_rollout_ref.model.lora_rank": setting.lora,
        "actor_rollout_ref.model.target_modules": "all-linear",
        f"{actor}.strategy": setting.strategy,
        f"{actor}.ppo_mini_batch_size": 256,
        f"{actor}.ppo_micro_batch_size_per_gpu": setting.micro,
        f"{actor}.use_dynamic_bsz": setting.budget > 0,
        f"{actor}.ppo_max_token_len_per_gpu": setting.budget or 16384,
        f"{actor}.ulysses_sequence_parallel_size": setting.ulysses,
        f"{actor}.entropy_coeff": 0.001 if setting.entropy else 0,
        f"{actor}.entropy_from_logits_with_chunking": setting.chunked,
        f"{actor}.use_kl_loss": setting.reference,
        f"{actor}.fsdp_config.param_offload": setting.offload,
        f"{actor}.fsdp_config.optimizer_offload": setting.offload,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": setting.log_micro,
        f"{rollout}.name": "vllm",
        f"{rollout}.n": 8,
        f"{rollout}.log_prob_micro_batch_size_per_gpu": setting.log_micro,
        f"{rollout}.tensor_model_parallel_size": setting.tensor,
        f"{rollout}.gpu_memory_utilization": setting.utilization,
        "trainer.device": "npu",
        "trainer.n_gpus_per_node": setting.npus // nodes,
        "trainer.nnodes": nodes,
    }
    if setting.critic:
        found |= {
            "critic.strategy": setting.strategy,
            "critic.model.path": "/models/of-a-setting",
            "critic.model.use_remove_padding": True,
            "critic.model.enable_gradient_checkpointing": setting.recompute,
            "critic.ppo_micro_batch_size_per_gpu": setting.critic_micro,
            "critic.ppo_max_token_len_per_gpu": setting.budget or 16384,
            "critic.ulysses_sequence_parallel_size": setting.ulysses,
            "critic.model.fsdp_config.param_offload": setting.offload,
            "critic.model.fsdp_config.optimizer_offload": setting.offload,
        }
    return [f"{key}={value}" for key, value in found.items()]
