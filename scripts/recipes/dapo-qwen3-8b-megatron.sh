#!/usr/bin/env bash
# row: DAPO | Qwen3-8B | Megatron | vLLM
# pin: 796871d7
# from: recipe/dapo/test_dapo_7b_math_megatron.sh, which is for GPUs and Qwen2.5-Math-7B
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen3-8B}
NODES=${NODES:-4}
NPUS_PER_NODE=${NPUS_PER_NODE:-16}
source "$(dirname "${BASH_SOURCE[0]}")/settings/dapo.sh"
source "$(dirname "${BASH_SOURCE[0]}")/settings/megatron.sh"

# This revision has no configuration for DAPO with Megatron. These settings are added to it.
dapo=("${dapo[@]/#reward_model.overlong/+reward_model.overlong}")
dapo=("${dapo[@]/#actor_rollout_ref.model.use/+actor_rollout_ref.model.use}")
lengths 2048 8192 1
batches 512 512 32
sizes=("${sizes[@]/#data.gen_batch_size/+data.gen_batch_size}")
engine 4 0.8 0.7
filter False
groups=("${groups[@]/#/+}")
over_megatron 4 2 1 1 True
start_dapo --config-path=../../verl/trainer/config --config-name=ppo_megatron_trainer "${fixed_batches[@]}" \
    actor_rollout_ref.actor.optim.lr_warmup_steps=10 \
    actor_rollout_ref.actor.optim.weight_decay=0.1 \
    actor_rollout_ref.actor.optim.clip_grad=1.0 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.rollout.enable_chunked_prefill=True \
    +reward_model.overlong_buffer.log=False \
    +reward_model.max_resp_len=8192 \
    trainer.resume_mode=auto \
    trainer.val_before_train=False \
    trainer.test_freq=10 \
    trainer.save_freq=10 \
    trainer.total_epochs=10 \
    "$@"
