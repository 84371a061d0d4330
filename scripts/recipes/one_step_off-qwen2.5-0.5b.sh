#!/usr/bin/env bash
# row: One_Step_Off_Policy | Qwen2.5-0.5B-Instruct | FSDP2 | vLLM
# pin: ccd7d934
# from: tests/special_e2e/run_one_step_off_policy.sh, with one NPU for each part instead of 6 and 2
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen2.5-0.5B-Instruct}
NODES=${NODES:-1}
NPUS_PER_NODE=${NPUS_PER_NODE:-2}
source "$(dirname "${BASH_SOURCE[0]}")/settings/one_step_off.sh"

export VLLM_ASCEND_ENABLE_NZ=0
offload False
start_one_step_off "${gsm8k[@]}" "${fsdp_offload[@]}" \
    data.prompt_key=prompt \
    data.truncation=left \
    data.train_batch_size=8 \
    data.max_prompt_length=1024 \
    data.max_response_length=2048 \
    actor_rollout_ref.actor.optim.weight_decay=0.1 \
    actor_rollout_ref.actor.clip_ratio_low=0.2 \
    actor_rollout_ref.actor.clip_ratio_high=0.28 \
    actor_rollout_ref.actor.clip_ratio_c=10.0 \
    actor_rollout_ref.actor.loss_agg_mode=token-mean \
    actor_rollout_ref.actor.ppo_mini_batch_size=4 \
    actor_rollout_ref.rollout.n=3 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    actor_rollout_ref.rollout.enable_chunked_prefill=True \
    actor_rollout_ref.rollout.val_kwargs.do_sample=True \
    actor_rollout_ref.rollout.val_kwargs.temperature=1.0 \
    actor_rollout_ref.rollout.val_kwargs.top_p=0.7 \
    reward_model.reward_manager=dapo \
    +reward_model.reward_kwargs.max_resp_len=2048 \
    +reward_model.reward_kwargs.overlong_buffer_cfg.enable=True \
    +reward_model.reward_kwargs.overlong_buffer_cfg.len=128 \
    +reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0 \
    +reward_model.reward_kwargs.overlong_buffer_cfg.log=False \
    trainer.val_before_train=True \
    trainer.save_freq=-1 \
    trainer.total_epochs=2 \
    "$@"
