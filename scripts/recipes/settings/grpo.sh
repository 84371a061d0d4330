# The common settings of the GRPO rows: rewards from rules, a KL loss against the reference model, FSDP. Sourced, not run.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

grpo=(
    algorithm.adv_estimator=grpo
    data.filter_overlong_prompts=True
    data.truncation=error
    actor_rollout_ref.model.enable_gradient_checkpointing=True
    actor_rollout_ref.actor.optim.lr=1e-6
    actor_rollout_ref.actor.use_kl_loss=True
    actor_rollout_ref.actor.kl_loss_coef=0.001
    actor_rollout_ref.actor.kl_loss_type=low_var_kl
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.n=5
    trainer.save_freq=-1
    trainer.test_freq=5
    trainer.total_epochs=15
)

# lengths PROMPT RESPONSE: set lengths in tokens.
lengths() {
    tokens=(data.max_prompt_length="$1" data.max_response_length="$2")
}

# batches PROMPTS MINI MICRO LOG_PROB_MICRO: set the prompts of a step and of an update, and the sequences of an NPU's
# micro-batches.
batches() {
    sizes=(
        data.train_batch_size="$1"
        actor_rollout_ref.actor.ppo_mini_batch_size="$2"
        actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu="$3"
        actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu="$4"
        actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu="$4"
    )
}

# engine TP MEMORY: set the NPUs of one rollout engine, and its share of their memory.
engine() {
    rollout=(
        actor_rollout_ref.rollout.tensor_model_parallel_size="$1"
        actor_rollout_ref.rollout.gpu_memory_utilization="$2"
    )
}

# start_grpo SETTING…: start the trainer with the settings of the functions above.
start_grpo() {
    start verl.trainer.main_ppo "${job[@]}" "${grpo[@]}" "${tokens[@]}" "${sizes[@]}" "${rollout[@]}" \
        "${fsdp_offload[@]}" "$@"
}
