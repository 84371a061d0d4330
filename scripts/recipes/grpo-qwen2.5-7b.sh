#!/usr/bin/env bash
# row: GRPO | Qwen2.5-7B-Instruct | FSDP | vLLM
# pin: v0.6.1
# from: examples/grpo_trainer/run_qwen2_5_7b_grpo_npu.sh
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen2.5-7B-Instruct}
NODES=${NODES:-1}
NPUS_PER_NODE=${NPUS_PER_NODE:-16}
source "$(dirname "${BASH_SOURCE[0]}")/settings/grpo.sh"

lengths 1024 1024
batches 1024 32 2 2
engine 4 0.3
offload False
start_grpo "${gsm8k[@]}" \
    actor_rollout_ref.model.use_remove_padding=False \
    actor_rollout_ref.actor.optim.lr=5e-8 \
    actor_rollout_ref.rollout.enable_chunked_prefill=False \
    trainer.total_epochs=5 \
    "$@"
