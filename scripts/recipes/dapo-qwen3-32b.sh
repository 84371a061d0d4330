#!/usr/bin/env bash
# row: DAPO | Qwen3-32B | FSDP2 | vLLM
# pin: 796871d7
# from: MindSpeed-RL 2.2.0, tests/verl_examples/configs/test_dapo_qwen3_32b_fsdp2_A3.sh
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen3-32B}
NODES=${NODES:-4}
NPUS_PER_NODE=${NPUS_PER_NODE:-16}
source "$(dirname "${BASH_SOURCE[0]}")/settings/dapo.sh"

export TASK_QUEUE_ENABLE=1 HCCL_ASYNC_ERROR_HANDLING=0 HCCL_EXEC_TIMEOUT=3600 HCCL_CONNECT_TIMEOUT=3600
lengths 2048 20480 4
batches 64 64 32
engine 4 0.7 0.7
filter False
over_fsdp 4
start_dapo \
    actor_rollout_ref.actor.strategy=fsdp2 \
    actor_rollout_ref.ref.strategy=fsdp2 \
    actor_rollout_ref.rollout.enforce_eager=False \
    trainer.balance_batch=True \
    trainer.resume_mode=auto \
    trainer.val_before_train=False \
    trainer.test_freq=-1 \
    trainer.save_freq=100 \
    trainer.total_epochs=10 \
    "$@"
