#!/usr/bin/env bash
# row: PPO | Qwen3-8B | FSDP | vLLM
# pin: v0.6.1
# from: examples/ppo_trainer/run_qwen3-8b_npu.sh
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen3-8B}
NODES=${NODES:-1}
NPUS_PER_NODE=${NPUS_PER_NODE:-8}
source "$(dirname "${BASH_SOURCE[0]}")/settings/common.sh"

export VLLM_USE_V1=1
start verl.trainer.main_ppo "${job[@]}" \
    algorithm.adv_estimator=gae \
    data.train_files="$DATA/dapo-math-17k.parquet" \
    data.val_files="$DATA/dapo-math-17k.parquet" \
    data.shuffle=False \
    data.train_batch_size=256 \
    data.max_prompt_length=2000 \
    data.max_response_length=12000 \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.model.enable_gradient_checkpointing=True \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.use_kl_loss=False \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.use_torch_compile=False \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \
    actor_rollout_ref.actor.fsdp_config.param_offload=True \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=True \
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.9 \
    actor_rollout_ref.rollout.max_num_batched_tokens=14000 \
    actor_rollout_ref.rollout.max_num_seqs=64 \
    actor_rollout_ref.rollout.enable_chunked_prefill=True \
    actor_rollout_ref.rollout.enforce_eager=False \
    actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 \
    critic.model.path="$MODEL" \
    critic.model.use_remove_padding=True \
    critic.model.enable_gradient_checkpointing=True \
    critic.model.fsdp_config.param_offload=True \
    critic.model.fsdp_config.optimizer_offload=True \
    critic.optim.lr=1e-5 \
    critic.use_dynamic_bsz=True \
    critic.ppo_micro_batch_size_per_gpu=1 \
    critic.ulysses_sequence_parallel_size=2 \
    trainer.val_before_train=False \
    trainer.max_actor_ckpt_to_keep=1 \
    trainer.max_critic_ckpt_to_keep=1 \
    trainer.save_freq=20 \
    trainer.test_freq=-1 \
    trainer.total_training_steps=100 \
    "$@"
