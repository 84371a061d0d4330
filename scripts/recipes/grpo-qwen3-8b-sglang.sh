#!/usr/bin/env bash
# row: GRPO | Qwen3-8B | FSDP | SGLang
# pin: v0.6.1
# from: examples/grpo_trainer/run_qwen3_8b_grpo_sglang_32k_spmd_npu.sh
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen3-8B}
NODES=${NODES:-1}
NPUS_PER_NODE=${NPUS_PER_NODE:-8}
source "$(dirname "${BASH_SOURCE[0]}")/settings/grpo.sh"

export HCCL_CONNECT_TIMEOUT=1500
export HCCL_HOST_SOCKET_PORT_RANGE=60000-60050 HCCL_NPU_SOCKET_PORT_RANGE=61000-61050
lengths 2048 32768
batches 16 16 1 1
engine 4 0.3
offload True
start_grpo "${dapo_math[@]}" \
    data.filter_overlong_prompts=False \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.actor.use_torch_compile=False \
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=4 \
    actor_rollout_ref.ref.ulysses_sequence_parallel_size=4 \
    actor_rollout_ref.rollout.name=sglang \
    +actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend=ascend \
    actor_rollout_ref.rollout.enable_chunked_prefill=False \
    actor_rollout_ref.nccl_timeout=3600 \
    trainer.val_before_train=False \
    trainer.save_freq=1000 \
    trainer.test_freq=10000 \
    trainer.total_epochs=5 \
    "$@"
