#!/usr/bin/env bash
# row: GRPO | Qwen2.5-0.5B-Instruct | FSDP | vLLM
# pin: v0.6.1
# from: docs/ascend_tutorial/ascend_quick_start.rst
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen2.5-0.5B-Instruct}
NODES=${NODES:-1}
NPUS_PER_NODE=${NPUS_PER_NODE:-8}
source "$(dirname "${BASH_SOURCE[0]}")/settings/grpo.sh"

lengths 512 128
batches 128 64 20 40
engine 2 0.6
offload False
start_grpo "${gsm8k[@]}" \
    actor_rollout_ref.model.use_remove_padding=False \
    actor_rollout_ref.actor.optim.lr=5e-7 \
    actor_rollout_ref.actor.entropy_coeff=0.001 \
    actor_rollout_ref.rollout.enable_chunked_prefill=False \
    trainer.total_epochs=1 \
    "$@"
