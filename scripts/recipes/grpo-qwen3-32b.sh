#!/usr/bin/env bash
# row: GRPO | Qwen3-32B | FSDP | vLLM
# pin: v0.6.1
# from: examples/grpo_trainer/run_qwen3-32b_npu.sh
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen3-32B}
NODES=${NODES:-4}
NPUS_PER_NODE=${NPUS_PER_NODE:-8}
source "$(dirname "${BASH_SOURCE[0]}")/settings/grpo.sh"

lengths 2048 2048
batches 1024 64 8 8
engine 4 0.7
offload True False
start_grpo "${gsm8k[@]}" "${eager[@]}" \
    data.shuffle=False \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=4 \
    +actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=bf16 \
    +actor_rollout_ref.actor.fsdp_config.mixed_precision.reduce_dtype=bf16 \
    +actor_rollout_ref.actor.fsdp_config.mixed_precision.buffer_dtype=fp32 \
    actor_rollout_ref.rollout.n=4 \
    actor_rollout_ref.rollout.enable_chunked_prefill=True \
    actor_rollout_ref.rollout.max_num_batched_tokens=32768 \
    trainer.save_freq=500 \
    trainer.test_freq=50 \
    trainer.total_epochs=50 \
    "$@"
