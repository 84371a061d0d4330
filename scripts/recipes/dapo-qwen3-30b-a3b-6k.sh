#!/usr/bin/env bash
# row: DAPO | Qwen3-30B-A3B, 6k | FSDP | vLLM
# pin: 796871d7
# from: MindSpeed-RL 2.2.0, tests/verl_examples/configs/test_dapo_qwen3_30b_fsdp_A+X_6k.sh
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen3-30B-A3B}
NODES=${NODES:-2}
NPUS_PER_NODE=${NPUS_PER_NODE:-16}
source "$(dirname "${BASH_SOURCE[0]}")/settings/dapo.sh"

export TASK_QUEUE_ENABLE=1 CPU_AFFINITY_CONF=1 VLLM_ASCEND_ENABLE_FLASHCOMM=1
export HCCL_OP_EXPANSION_MODE=AIV HCCL_ASYNC_ERROR_HANDLING=0 HCCL_EXEC_TIMEOUT=3600 HCCL_CONNECT_TIMEOUT=3600
lengths 2048 6144 16
batches 32 96 32
engine 4 0.6 0.7
filter True
over_fsdp 16
start_dapo "${no_dropout[@]}" "${one_sequence[@]}" \
    +actor_rollout_ref.actor.fsdp_config.model_dtype=bfloat16 \
    actor_rollout_ref.rollout.max_num_seqs=1024 \
    actor_rollout_ref.rollout.enforce_eager=True \
    actor_rollout_ref.rollout.free_cache_engine=True \
    ++actor_rollout_ref.nccl_timeout=7200 \
    trainer.resume_mode=auto \
    trainer.val_before_train=False \
    trainer.test_freq=200 \
    trainer.save_freq=50 \
    trainer.total_epochs=100 \
    "$@"
