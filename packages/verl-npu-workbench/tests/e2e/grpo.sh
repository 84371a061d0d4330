#!/usr/bin/env bash
# A launch script as users write them, for 16 NPUs; it is rehearsed and never run as it is.
set -xeuo pipefail

pkill -9 python || true
rm -rf /tmp/ray
source /usr/local/Ascend/ascend-toolkit/set_env.sh
ulimit -n 1048576
export HCCL_CONNECT_TIMEOUT=1500
export VLLM_USE_V1=1
NNODES=${NNODES:-2}
MODEL_PATH=${MODEL_PATH:-"$HOME/models/Qwen2.5-7B-Instruct"}
PROMPT=$(python3 -c 'print(2 * 1024)')
mkdir -p logs

python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files="$HOME/data/gsm8k/train.parquet" \
    data.val_files="$HOME/data/gsm8k/test.parquet" \
    data.train_batch_size=1024 \
    data.max_prompt_length="$PROMPT" \
    data.max_response_length=1024 \
    actor_rollout_ref.model.path="$MODEL_PATH" \
    actor_rollout_ref.actor.optim.lr=5e-7 \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.fsdp_config.param_offload=True \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=5 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=4 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16 \
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=16 \
    trainer.logger='["console","wandb"]' \
    trainer.n_gpus_per_node=8 \
    trainer.nnodes="$NNODES" \
    trainer.save_freq=-1 \
    trainer.test_freq=5 \
    trainer.total_epochs=15 "$@" 2>&1 | tee logs/grpo.log
