#!/usr/bin/env bash
# row: GRPO | DeepSeek-V3-671B | Megatron | vLLM
# pin: ccd7d934
# from: recipe/r1_ascend/run_deepseekv3_671b_grpo_megatron_npu.sh, ray_start_grpo_npu.sh
# MindSpeed f6688, as in the recipe's image. Later revisions fail at use_fused_rotary_pos_emb without its type.
set -euo pipefail
MODEL=${MODEL:-$HOME/models/DeepSeek-V3-hf}
NODES=${NODES:-16}
NPUS_PER_NODE=${NPUS_PER_NODE:-16}
source "$(dirname "${BASH_SOURCE[0]}")/settings/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/settings/megatron.sh"

export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True TASK_QUEUE_ENABLE=2
export HCCL_BUFFSIZE=300 HCCL_CONNECT_TIMEOUT=600 HCCL_EXEC_TIMEOUT=600 HCCL_OP_EXPANSION_MODE=AIV
export VLLM_USE_V1=1 VLLM_ENABLE_GRAPH_MODE=1 VLLM_ENABLE_MC2=1
engine_tp=2
# The recipe's engine uses expert parallelism over all NPUs.
export VLLM_DP_SIZE=$((NODES * NPUS_PER_NODE / engine_tp))

over_megatron 1 8 32 1 False
override=+actor_rollout_ref.actor.megatron.override_transformer_config
start recipe.r1_ascend.main_ppo --config-path="$PWD/verl/trainer/config" --config-name=ppo_megatron_trainer \
    "${job[@]}" "${trainer[@]}" \
    algorithm.adv_estimator=grpo \
    algorithm.kl_ctrl.kl_coef=0.0 \
    custom_reward_function.path=recipe/r1_ascend/deepscaler.py \
    custom_reward_function.name=compute_score \
    data.train_files="$DATA/deepscaler/train.parquet" \
    data.val_files="$DATA/deepscaler/test.parquet" \
    data.truncation=error \
    data.filter_overlong_prompts=True \
    data.max_prompt_length=1024 \
    data.max_response_length=2048 \
    data.train_batch_size=512 \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.kl_loss_coef=0.001 \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \
    actor_rollout_ref.actor.ppo_mini_batch_size=512 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \
    actor_rollout_ref.actor.load_weight=True \
    actor_rollout_ref.ref.load_weight=True \
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=16 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.rollout.tensor_model_parallel_size="$engine_tp" \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.8 \
    actor_rollout_ref.rollout.max_num_seqs=64 \
    actor_rollout_ref.rollout.max_num_batched_tokens=1024 \
    actor_rollout_ref.rollout.enable_chunked_prefill=True \
    actor_rollout_ref.rollout.enforce_eager=False \
    actor_rollout_ref.rollout.free_cache_engine=True \
    actor_rollout_ref.rollout.val_kwargs.do_sample=True \
    actor_rollout_ref.rollout.val_kwargs.temperature=1.0 \
    "$override.multi_head_latent_attention=True" \
    "$override.moe_token_dispatcher_type=alltoall" \
    "$override.moe_grouped_gemm=True" \
    "$override.use_fused_rotary_pos_emb=True" \
    "$override.use_fused_swiglu=True" \
    "$override.rope_scaling_type=yarn" \
    "$override.yarn_scaling_factor=40" \
    "$override.rope_scaling_mscale=1.0" \
    "$override.rope_scaling_mscale_all_dim=1.0" \
    "$override.seq_length=2048" \
    "$override.pipeline_num_transformer_layers=[[6],[8],[8],[8],[8],[8],[8],[7]]" \
    "$override.num_layers_in_first_pipeline_stage=6" \
    "$override.num_layers_in_last_pipeline_stage=7" \
    "${override#+}.recompute_granularity=full" \
    "${override#+}.recompute_method=block" \
    "${override#+}.recompute_num_layers=8" \
    "$override.swap_optimizer=True" \
    trainer.val_before_train=True \
    trainer.test_freq=5 \
    trainer.save_freq=-1 \
    trainer.total_epochs=1 \
    "$@"
