"""Forty jobs: by the formula of `by_hand` twenty fit and twenty do not, each at least a tenth of the memory away."""

from __future__ import annotations

from .by_hand import QWEN3_06B, QWEN3_8B, QWEN25_7B, SEQUENCES, Model, Setting

_QWEN25_32B = Model("qwen2", 5120, 27648, 64, 40, 8, vocabulary=152064)
_EXPERTS_30B = Model("qwen3_moe", 2048, 768, 48, 32, 4, experts=128, chosen=8)
_EXPERTS_8B = Model("qwen3_moe", 2048, 768, 12, 32, 4, experts=128, chosen=8)
_WIDE_6B = Model("qwen3", 8192, 28672, 4, 64, 8)
_WIDE_9B = Model("qwen3", 8192, 28672, 8, 64, 8)
_WIDE_37B = Model("qwen3", 8192, 28672, 40, 64, 8)
_NARROW_1B = Model("qwen2", 2048, 11008, 8, 16, 2)

FITTING = (
    Setting("Qwen3-0.6B", QWEN3_06B, 8, 1024, 3072, micro=4, log_micro=4),
    Setting("Qwen3-0.6B without recomputation", QWEN3_06B, 8, 1024, 3072, micro=2, log_micro=4, recompute=False),
    Setting("Qwen2.5-7B", QWEN25_7B, 8, 1024, 3072, micro=2, log_micro=2),
    Setting("Qwen2.5-7B, FSDP1, reference", QWEN25_7B, 16, 512, 1536, micro=4, strategy="fsdp", reference=True),
    Setting("Qwen3-8B, offload, engine 0.8", QWEN3_8B, 8, 1024, 3072, offload=True, utilization=0.8),
    Setting("Qwen3-8B, A3, Ulysses 4, long answers", QWEN3_8B, 16, 2048, 30720, npu="a3", ulysses=4),
    Setting("Qwen2.5-32B on 32 NPUs", _QWEN25_32B, 32, 1024, 3072, tensor=4),
    Setting("30B of experts on 32 NPUs", _EXPERTS_30B, 32, 1024, 3072, tensor=4, strategy="fsdp"),
    Setting("8B of experts", _EXPERTS_8B, 16, 1024, 3072, micro=2, log_micro=2, strategy="fsdp"),
    Setting("wide 6B", _WIDE_6B, 8, 1024, 3072, micro=4, log_micro=4),
    Setting("wide 6B, FSDP1", _WIDE_6B, 8, 1024, 3072, micro=2, log_micro=2, strategy="fsdp"),
    Setting("wide 6B, entropy in the loss", _WIDE_6B, 8, 1024, 3072, micro=2, entropy=True),
    Setting("wide 6B, entropy in chunks", _WIDE_6B, 8, 1024, 3072, micro=4, log_micro=8, chunked=True),
    Setting("wide 6B with a critic", _WIDE_6B, 8, 1024, 3072, critic=True, utilization=0.4),
    Setting("wide 6B with a critic, A3, offload", _WIDE_6B, 8, 512, 1536, 2, 2, critic=True, npu="a3", offload=True),
    Setting("wide 6B, token budget", _WIDE_6B, 8, 1024, 3072, budget=16384),
    Setting("wide 9B, token budget, Ulysses 2", _WIDE_9B, 8, 1024, 7168, budget=8192, ulysses=2),
    Setting("wide 9B, LoRA", _WIDE_9B, 8, 1024, 3072, micro=2, log_micro=2, lora=32),
    Setting("wide 9B on 4 NPUs", _WIDE_9B, 4, 512, 512, offload=True, utilization=0.4),
    Setting("narrow 1B on 2 NPUs", _NARROW_1B, 2, 512, 1536, micro=8, log_micro=4),
)
NOT_FITTING = (
    Setting("Qwen3-0.6B, log-probabilities of 16", QWEN3_06B, 8, 1024, 3072, micro=4, log_micro=16),
    Setting("Qwen3-0.6B without recomputation", QWEN3_06B, 8, 1024, 3072, micro=8, log_micro=2, recompute=False),
    Setting("Qwen2.5-7B on 4 NPUs, engine 0.8", QWEN25_7B, 4, 512, 1536, utilization=0.8),
    Setting("Qwen3-8B, micro batches of 16", QWEN3_8B, 8, 1024, 3072, micro=16),
    Setting("Qwen3-8B, A3, long answers without Ulysses", QWEN3_8B, 16, 2048, 30720, npu="a3"),
    Setting("Qwen2.5-32B on 8 NPUs", _QWEN25_32B, 8, 1024, 3072, tensor=4, utilization=0.4),
    Setting("30B of experts on 8 NPUs", _EXPERTS_30B, 8, 1024, 3072, tensor=4, utilization=0.4, strategy="fsdp"),
    Setting("8B of experts, micro batches of 16", _EXPERTS_8B, 16, 1024, 3072, micro=16, log_micro=4, strategy="fsdp"),
    Setting("wide 6B, FSDP1, log-probabilities of 8", _WIDE_6B, 8, 1024, 3072, micro=2, log_micro=8, strategy="fsdp"),
    Setting("wide 6B, entropy in the loss", _WIDE_6B, 8, 1024, 3072, micro=4, entropy=True),
    Setting("wide 6B, entropy in chunks", _WIDE_6B, 8, 1024, 3072, micro=16, log_micro=4, chunked=True),
    Setting("wide 6B with a critic, engine 0.9", _WIDE_6B, 8, 1024, 3072, critic=True, utilization=0.9),
    Setting("wide 6B with a critic, long answers", _WIDE_6B, 8, 2048, 14336, 4, 1, critic=True, offload=True),
    Setting("wide 6B, token budget", _WIDE_6B, 8, 1024, 3072, budget=65536),
    Setting("wide 9B, token budget, Ulysses 2", _WIDE_9B, 8, 1024, 7168, budget=32768, ulysses=2),
    Setting("wide 9B, LoRA", _WIDE_9B, 8, 1024, 3072, micro=2, log_micro=16, lora=32),
    Setting("wide 9B on 2 NPUs", _WIDE_9B, 2, 512, 512, utilization=0.4),
    Setting("wide 37B, an engine on one NPU", _WIDE_37B, 32, 512, 1536, offload=True, tensor=1, utilization=0.9),
    Setting("narrow 1B on 2 NPUs", _NARROW_1B, 2, 512, 1536, micro=64, log_micro=4),
    Setting(
        "narrow 1B, critic without recomputation",
        _NARROW_1B,
        8,
        1024,
        3072,
        critic=True,
        micro=4,
        log_micro=4,
        critic_micro=32,
        recompute=False,
    ),
)


def config(model: Model) -> dict[str, object]:
    """Return a model's config.json."""
    found: dict[str, object] = {
        "model_type": model.kind,
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.key_heads,
        "head_dim": model.head,
        "vocab_size": model.vocabulary,
        "tie_word_embeddings": model.tied,
        "max_position_embeddings": 65536,
    }
    if model.experts:
        found |= {
            "num_experts": model.experts,
            "num_experts_per_tok": model.chosen,
            "moe_intermediate_size": model.intermediate,
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
        "data.train_batch_size": SEQUENCES,
        "data.max_prompt_length": setting.prompt,
        "data.max_response_length": setting.response,
        "actor_rollout_ref.model.path": "/models/of-a-setting",
        "actor_rollout_ref.model.use_remove_padding": True,
        "actor_rollout_ref.model.enable_gradient_checkpointing": setting.recompute,
        "actor_rollout_ref.model.lora_rank": setting.lora,
        "actor_rollout_ref.model.target_modules": "all-linear",
        f"{actor}.strategy": setting.strategy,
        f"{actor}.ppo_mini_batch_size": SEQUENCES,
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
