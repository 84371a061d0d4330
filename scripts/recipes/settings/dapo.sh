# The common settings of the DAPO rows: a higher clip ratio, groups with equal rewards filtered out, a penalty for overlong
# answers, dynamic batches. Sourced, not run.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

dapo=(
    "${dapo_math[@]}"
    algorithm.adv_estimator=grpo
    algorithm.kl_ctrl.kl_coef=0.0
    data.prompt_key=prompt
    data.truncation=left
    actor_rollout_ref.model.use_remove_padding=True
    actor_rollout_ref.actor.optim.lr=1e-6
    actor_rollout_ref.actor.clip_ratio_low=0.2
    actor_rollout_ref.actor.clip_ratio_high=0.28
    actor_rollout_ref.actor.clip_ratio_c=10.0
    actor_rollout_ref.actor.loss_agg_mode=token-mean
    actor_rollout_ref.actor.use_kl_loss=False
    actor_rollout_ref.actor.kl_loss_coef=0.0
    actor_rollout_ref.actor.use_dynamic_bsz=True
    actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True
    actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.n=16
    actor_rollout_ref.rollout.temperature=1.0
    actor_rollout_ref.rollout.top_p=1.0
    actor_rollout_ref.rollout.top_k=-1
    actor_rollout_ref.rollout.val_kwargs.temperature=1.0
    actor_rollout_ref.rollout.val_kwargs.top_k=-1
    actor_rollout_ref.rollout.val_kwargs.do_sample=True
    actor_rollout_ref.rollout.val_kwargs.n=1
    reward_model.reward_manager=dapo
    # The reward of an answer decreases over its last 4096 allowed tokens.
    reward_model.overlong_buffer.enable=True
    reward_model.overlong_buffer.len=4096
    reward_model.overlong_buffer.penalty_factor=1.0
    trainer.total_epochs=1
)

# lengths PROMPT RESPONSE PARTS: set lengths in tokens. A micro-batch has the tokens of a whole sequence divided by PARTS.
lengths() {
    local all=$(($1 + $2))
    tokens=(
        data.max_prompt_length="$1"
        data.max_response_length="$2"
        actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$((all / $3))
        actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=$((all / $3))
        actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=$((all / $3))
        actor_rollout_ref.rollout.max_num_batched_tokens="$all"
    )
}

# batches PROMPTS GENERATED MINI: set the prompts of a step, of one generation, and of an update.
batches() {
    sizes=(data.train_batch_size="$1" data.gen_batch_size="$2" actor_rollout_ref.actor.ppo_mini_batch_size="$3")
}

# engine TP MEMORY TOP-P: set the NPUs of one rollout engine, its share of their memory, and top_p in validation.
engine() {
    rollout=(
        actor_rollout_ref.rollout.tensor_model_parallel_size="$1"
        actor_rollout_ref.rollout.gpu_memory_utilization="$2"
        actor_rollout_ref.rollout.val_kwargs.top_p="$3"
    )
}

# filter True|False [BATCHES]: set whether groups with equal rewards are replaced, with at most BATCHES more batches.
filter() {
    groups=(
        algorithm.filter_groups.enable="$1"
        algorithm.filter_groups.max_num_gen_batches="${2:-10}"
        algorithm.filter_groups.metric=acc
    )
}

# over_fsdp SP: use FSDP for actor and reference model, with sequence parallelism over SP NPUs.
over_fsdp() {
    offload True
    trainer=(
        "${fsdp_offload[@]}"
        "${eager[@]}"
        actor_rollout_ref.model.enable_gradient_checkpointing=True
        actor_rollout_ref.actor.grad_clip=1.0
        actor_rollout_ref.actor.optim.lr_warmup_steps=10
        actor_rollout_ref.actor.optim.weight_decay=0.1
        actor_rollout_ref.actor.fsdp_config.fsdp_size=-1
        actor_rollout_ref.actor.ulysses_sequence_parallel_size="$1"
        actor_rollout_ref.ref.ulysses_sequence_parallel_size="$1"
        actor_rollout_ref.rollout.enable_chunked_prefill=True
    )
}

# Some models do not have these three settings, and ignore them.
no_dropout=(
    +actor_rollout_ref.model.override_config.attention_dropout=0.
    +actor_rollout_ref.model.override_config.embd_pdrop=0.
    +actor_rollout_ref.model.override_config.resid_pdrop=0.
)

# Batches with a fixed number of sequences, whatever their lengths.
fixed_batches=(
    actor_rollout_ref.actor.use_dynamic_bsz=False
    actor_rollout_ref.ref.log_prob_use_dynamic_bsz=False
    actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=False
)
one_sequence=(
    "${fixed_batches[@]}"
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1
)

# Further settings of v0.6.1's scripts for dense models.
dense=(
    "${no_dropout[@]}"
    actor_rollout_ref.actor.fsdp_config.forward_prefetch=True
    actor_rollout_ref.ref.fsdp_config.forward_prefetch=True
    trainer.resume_mode=auto
    trainer.save_freq=20
)

# start_dapo SETTING…: start the trainer with the settings of the functions above.
start_dapo() {
    start recipe.dapo.main_dapo "${job[@]}" "${dapo[@]}" "${tokens[@]}" "${sizes[@]}" "${rollout[@]}" "${groups[@]}" \
        "${trainer[@]}" "$@"
}
