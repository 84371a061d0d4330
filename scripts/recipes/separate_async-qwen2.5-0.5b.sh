#!/usr/bin/env bash
# row: GRPO, separate_async | Qwen2.5-0.5B-Instruct | FSDP2 | vLLM
# pin: 1dda039b
# from: tests/special_e2e/run_v1_separate_async_ascend.sh, without the cache of answers that it tries
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen2.5-0.5B-Instruct}
NODES=${NODES:-1}
NPUS_PER_NODE=${NPUS_PER_NODE:-8}
# The NPUs of the servers on each node. The trainer has the others.
ROLLOUT_NPUS=${ROLLOUT_NPUS:-$((NPUS_PER_NODE / 2))}
whole=$NPUS_PER_NODE
NPUS_PER_NODE=$((whole - ROLLOUT_NPUS))
source "$(dirname "${BASH_SOURCE[0]}")/settings/common.sh"

# A batch is all mini-batches between two weight syncs.
mini_batch=16
sync_step=4

# On NPUs, the HCCL checkpoint engine is registered as nccl.
offload True
start verl.trainer.main_ppo "${job[@]}" "${eager[@]}" "${gsm8k[@]}" "${fsdp_offload[@]}" \
    trainer.use_v1=True \
    trainer.v1.trainer_mode=separate_async \
    trainer.v1.separate_async.num_warmup_batches=1 \
    trainer.v1.separate_async.parameter_sync_step="$sync_step" \
    trainer.v1.sampler.max_off_policy_threshold=8 \
    trainer.v1.sampler.max_off_policy_strategy=drop \
    transfer_queue.enable=True \
    algorithm.adv_estimator=grpo \
    algorithm.rollout_correction.bypass_mode=True \
    data.prompt_key=prompt \
    data.truncation=left \
    data.return_raw_chat=True \
    data.filter_overlong_prompts=False \
    data.train_batch_size=$((sync_step * mini_batch)) \
    data.gen_batch_size=1 \
    data.max_prompt_length=1024 \
    data.max_response_length=2048 \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.model.enable_gradient_checkpointing=True \
    actor_rollout_ref.actor.strategy=fsdp2 \
    actor_rollout_ref.actor.fsdp_config.fsdp_size=2 \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.optim.weight_decay=0.1 \
    actor_rollout_ref.actor.ppo_mini_batch_size="$mini_batch" \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096 \
    actor_rollout_ref.actor.use_kl_loss=False \
    actor_rollout_ref.actor.clip_ratio_low=0.2 \
    actor_rollout_ref.actor.clip_ratio_high=0.28 \
    actor_rollout_ref.actor.clip_ratio_c=10.0 \
    actor_rollout_ref.actor.loss_agg_mode=token-mean \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.nnodes="$NODES" \
    actor_rollout_ref.rollout.n_gpus_per_node="$ROLLOUT_NPUS" \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.5 \
    actor_rollout_ref.rollout.n=16 \
    actor_rollout_ref.rollout.calculate_log_probs=True \
    actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True \
    actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=4096 \
    actor_rollout_ref.rollout.enable_chunked_prefill=True \
    actor_rollout_ref.rollout.checkpoint_engine.backend=nccl \
    actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=1024 \
    actor_rollout_ref.rollout.val_kwargs.do_sample=True \
    actor_rollout_ref.rollout.val_kwargs.temperature=1.0 \
    actor_rollout_ref.rollout.val_kwargs.top_p=0.7 \
    reward.reward_manager.name=dapo \
    +reward.reward_kwargs.max_resp_len=2048 \
    +reward.reward_kwargs.overlong_buffer_cfg.enable=True \
    +reward.reward_kwargs.overlong_buffer_cfg.len=128 \
    +reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0 \
    +reward.reward_kwargs.overlong_buffer_cfg.log=False \
    trainer.val_before_train=True \
    trainer.test_freq=-1 \
    trainer.save_freq=-1 \
    trainer.total_epochs=2 \
    "$@"
