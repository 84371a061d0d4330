#!/usr/bin/env bash
# row: DAPO | Qwen3-30B-A3B-Base | Megatron | vLLM
# pin: ccd7d934
# from: recipe/dapo/run_dapo_qwen3_moe_30b_megatron_npu.sh, which lacks the engine's TP at v0.6.1
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen3-30B-A3B-Base}
NODES=${NODES:-1}
NPUS_PER_NODE=${NPUS_PER_NODE:-16}
source "$(dirname "${BASH_SOURCE[0]}")/settings/dapo.sh"
source "$(dirname "${BASH_SOURCE[0]}")/settings/megatron.sh"

lengths 2048 20480 1
batches 16 32 2
engine 4 0.7 1.0
filter True
over_megatron 4 2 2 1 True
start_dapo --config-name=dapo_megatron_trainer "${no_dropout[@]}" "${eager[@]}" "${recompute_all[@]}" \
    data.shuffle=False \
    data.filter_overlong_prompts=False \
    actor_rollout_ref.actor.ppo_epochs=1 \
    actor_rollout_ref.actor.optim.lr_warmup_steps=10 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 \
    actor_rollout_ref.rollout.max_model_len=22528 \
    actor_rollout_ref.rollout.enable_chunked_prefill=True \
    actor_rollout_ref.rollout.enable_prefix_caching=False \
    actor_rollout_ref.rollout.enforce_eager=True \
    actor_rollout_ref.rollout.free_cache_engine=True \
    actor_rollout_ref.nccl_timeout=14400 \
    trainer.val_before_train=False \
    trainer.test_freq=-1 \
    trainer.save_freq=-1 \
    "$@"
