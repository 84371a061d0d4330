#!/usr/bin/env bash
# row: GRPO | Qwen3-4B | FSDP | vLLM
# pin: ccd7d934
# from: examples/grpo_trainer/run_qwen3_4b_grpo_vllm_1k_npu.sh
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen3-4B}
NODES=${NODES:-1}
NPUS_PER_NODE=${NPUS_PER_NODE:-16}
source "$(dirname "${BASH_SOURCE[0]}")/settings/grpo.sh"

export VLLM_USE_V1=1 TASK_QUEUE_ENABLE=2 CPU_AFFINITY_CONF=1
lengths 1024 1024
engine 2 0.9
offload True
# The size of micro-batches is counted in tokens.
sizes=(data.train_batch_size=512 actor_rollout_ref.actor.ppo_mini_batch_size=256)
start_grpo "${gsm8k[@]}" \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.actor.optim.lr=5e-7 \
    actor_rollout_ref.actor.entropy_coeff=0.001 \
    actor_rollout_ref.actor.use_torch_compile=False \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=3000 \
    actor_rollout_ref.rollout.enforce_eager=True \
    actor_rollout_ref.rollout.enable_chunked_prefill=False \
    actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True \
    actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=4096 \
    actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True \
    actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=8192 \
    trainer.val_before_train=False \
    "$@"
