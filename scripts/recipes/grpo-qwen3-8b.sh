#!/usr/bin/env bash
# row: GRPO | Qwen3-8B | FSDP | vLLM
# pin: v0.6.1
# from: examples/grpo_trainer/run_qwen3-8b_npu.sh
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen3-8B}
NODES=${NODES:-1}
NPUS_PER_NODE=${NPUS_PER_NODE:-8}
source "$(dirname "${BASH_SOURCE[0]}")/settings/grpo.sh"

lengths 512 1024
batches 256 64 10 32
engine 2 0.6
offload False
start_grpo "${dapo_math[@]}" "${eager[@]}" \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.actor.fsdp_config.forward_prefetch=True \
    actor_rollout_ref.ref.fsdp_config.forward_prefetch=True \
    actor_rollout_ref.actor.entropy_from_logits_with_chunking=True \
    actor_rollout_ref.ref.entropy_from_logits_with_chunking=True \
    trainer.val_before_train=True \
    trainer.save_freq=5 \
    "$@"
