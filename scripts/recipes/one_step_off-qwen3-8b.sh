#!/usr/bin/env bash
# row: One_Step_Off_Policy | Qwen3-8B | FSDP2 | vLLM
# pin: ccd7d934
# from: recipe/one_step_off_policy/shell/grpo_qwen3_8b_gsm8k_fsdp2_8_8_npu.sh
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen3-8B}
NODES=${NODES:-1}
NPUS_PER_NODE=${NPUS_PER_NODE:-16}
source "$(dirname "${BASH_SOURCE[0]}")/settings/one_step_off.sh"

export VLLM_ASCEND_ENABLE_NZ=0 HCCL_EXEC_TIMEOUT=60000 HCCL_CONNECT_TIMEOUT=7200
prompt=2048 response=32768 sp=8
offload True
start_one_step_off "${dapo_math[@]}" "${fsdp_offload[@]}" \
    data.train_batch_size=32 \
    data.max_prompt_length="$prompt" \
    data.max_response_length="$response" \
    data.filter_overlong_prompts=True \
    data.filter_overlong_prompts_workers=64 \
    data.truncation=error \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$(((prompt + response) / sp)) \
    actor_rollout_ref.actor.ulysses_sequence_parallel_size="$sp" \
    actor_rollout_ref.actor.fsdp_config.fsdp_size=8 \
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1 \
    actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=$(((prompt + response) / sp)) \
    actor_rollout_ref.ref.ulysses_sequence_parallel_size="$sp" \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=4 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 \
    actor_rollout_ref.rollout.max_num_batched_tokens=$((prompt + response)) \
    actor_rollout_ref.rollout.enforce_eager=True \
    actor_rollout_ref.rollout.load_format=safetensors \
    actor_rollout_ref.nccl_timeout=14400 \
    trainer.resume_mode=auto \
    trainer.val_before_train=False \
    trainer.save_freq=10 \
    trainer.total_epochs=15 \
    "$@"
