#!/usr/bin/env bash
# row: GRPO | Qwen2.5-32B-Instruct | FSDP | vLLM
# pin: v0.6.1
# from: examples/grpo_trainer/run_qwen2_5_32b_grpo_npu.sh
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen2.5-32B-Instruct}
NODES=${NODES:-2}
NPUS_PER_NODE=${NPUS_PER_NODE:-16}
source "$(dirname "${BASH_SOURCE[0]}")/settings/grpo.sh"

lengths 1024 1024
batches 1024 128 2 2
engine 8 0.4
offload False
start_grpo "${gsm8k[@]}" \
    actor_rollout_ref.model.use_remove_padding=False \
    trainer.test_freq=10 \
    "$@"
