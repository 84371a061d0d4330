#!/usr/bin/env bash
# row: DAPO | Qwen3-30B-A3B-Base | FSDP | vLLM
# pin: v0.6.1
# from: recipe/dapo/run_dapo_qwen3_moe_30b_base_fsdp_npu.sh
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen3-30B-A3B-Base}
NODES=${NODES:-8}
NPUS_PER_NODE=${NPUS_PER_NODE:-16}
source "$(dirname "${BASH_SOURCE[0]}")/settings/dapo.sh"

lengths 2048 20480 2
batches 512 1536 32
engine 2 0.8 0.7
filter True
over_fsdp 16
start_dapo "${no_dropout[@]}" \
    actor_rollout_ref.actor.fsdp_config.forward_prefetch=False \
    actor_rollout_ref.ref.fsdp_config.forward_prefetch=False \
    actor_rollout_ref.rollout.max_num_seqs=128 \
    actor_rollout_ref.rollout.enforce_eager=False \
    actor_rollout_ref.rollout.free_cache_engine=True \
    trainer.val_before_train=False \
    trainer.test_freq=5 \
    trainer.save_freq=-1 \
    "$@"
