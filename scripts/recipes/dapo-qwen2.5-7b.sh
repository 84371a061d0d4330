#!/usr/bin/env bash
# row: DAPO | Qwen2.5-7B-Instruct | FSDP | vLLM
# pin: v0.6.1
# from: recipe/dapo/run_dapo_qwen2.5_7b_npu.sh
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen2.5-7B-Instruct}
NODES=${NODES:-1}
NPUS_PER_NODE=${NPUS_PER_NODE:-16}
source "$(dirname "${BASH_SOURCE[0]}")/settings/dapo.sh"

lengths 2048 20480 4
batches 16 48 1
engine 1 0.5 1.0
filter True
over_fsdp 4
start_dapo "${dense[@]}" \
    actor_rollout_ref.actor.entropy_checkpointing=True \
    actor_rollout_ref.ref.entropy_checkpointing=True \
    actor_rollout_ref.actor.entropy_from_logits_with_chunking=True \
    actor_rollout_ref.ref.entropy_from_logits_with_chunking=True \
    trainer.val_before_train=True \
    trainer.test_freq=5 \
    "$@"
