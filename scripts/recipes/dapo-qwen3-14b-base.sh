#!/usr/bin/env bash
# row: DAPO | Qwen3-14B-Base | FSDP | vLLM
# pin: v0.6.1
# from: recipe/dapo/run_dapo_qwen3_14b_base_npu.sh
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen3-14B-Base}
NODES=${NODES:-2}
NPUS_PER_NODE=${NPUS_PER_NODE:-16}
source "$(dirname "${BASH_SOURCE[0]}")/settings/dapo.sh"

lengths 2048 20480 2
batches 16 32 1
engine 2 0.8 1.0
filter False
over_fsdp 2
start_dapo "${dense[@]}" \
    data.shuffle=False \
    actor_rollout_ref.actor.fsdp_config.fsdp_size=8 \
    actor_rollout_ref.actor.entropy_checkpointing=True \
    actor_rollout_ref.ref.entropy_checkpointing=True \
    actor_rollout_ref.rollout.enable_chunked_prefill=False \
    trainer.val_before_train=False \
    trainer.test_freq=10 \
    trainer.total_training_steps=100 \
    "$@"
