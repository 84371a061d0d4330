#!/usr/bin/env bash
# row: DAPO | Qwen3-235B-A22B | Megatron | vLLM
# pin: 796871d7
# from: MindSpeed-RL 2.2.0, tests/verl_examples/configs/test_dapo_qwen3_235b_megatron_A3.sh
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen3-235B-A22B-Thinking-2507}
NODES=${NODES:-16}
NPUS_PER_NODE=${NPUS_PER_NODE:-16}
source "$(dirname "${BASH_SOURCE[0]}")/settings/dapo.sh"
source "$(dirname "${BASH_SOURCE[0]}")/settings/megatron.sh"

export HCCL_EXEC_TIMEOUT=17340 HCCL_CONNECT_TIMEOUT=7200 HCCL_ASYNC_ERROR_HANDLING=0 HCCL_IF_BASE_PORT=23999
export VLLM_USE_V1=1 VLLM_ASCEND_ENABLE_MOE_ALL2ALL_SEQ=1 P2P_HCCL_BUFFSIZE=20
override=actor_rollout_ref.actor.megatron.override_transformer_config

# This revision has no configuration for DAPO with Megatron. These settings are added to it.
dapo=("${dapo[@]/#reward_model.overlong/+reward_model.overlong}")
dapo=("${dapo[@]/#actor_rollout_ref.model.use/+actor_rollout_ref.model.use}")
lengths 1024 34816 8
batches 256 256 32
sizes=("${sizes[@]/#data.gen_batch_size/+data.gen_batch_size}")
# 32 engines of 4 NPUs each: the experts are spread over all 128 NPUs.
engine 4 0.6 0.7
filter True 30
groups=("${groups[@]/#/+}")
over_megatron 4 8 8 8 True
start_dapo --config-path=../../verl/trainer/config --config-name=ppo_megatron_trainer "${recompute_all[@]}" \
    "+$override.context_parallel_size=8" \
    "+$override.num_layers_in_first_pipeline_stage=11" \
    "+$override.num_layers_in_last_pipeline_stage=11" \
    actor_rollout_ref.actor.optim.weight_decay=0.1 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32 \
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=32 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 \
    +actor_rollout_ref.rollout.dp_model_parallel_size=32 \
    +actor_rollout_ref.rollout.enable_expert_parallel=True \
    actor_rollout_ref.rollout.load_format=safetensors \
    actor_rollout_ref.rollout.enable_chunked_prefill=False \
    actor_rollout_ref.rollout.max_num_batched_tokens=2048 \
    actor_rollout_ref.rollout.max_model_len=35840 \
    actor_rollout_ref.rollout.max_num_seqs=2048 \
    actor_rollout_ref.nccl_timeout=7200 \
    +reward_model.overlong_buffer.log=False \
    +reward_model.max_resp_len=34816 \
    trainer.resume_mode=auto \
    trainer.val_before_train=False \
    trainer.test_freq=-1 \
    trainer.save_freq=100 \
    trainer.total_training_steps=100 \
    "$@"
