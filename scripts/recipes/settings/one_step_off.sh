# The common settings of the one_step_off_policy rows: separate NPUs for trainer and rollout. Sourced, not run.

# The rollout's NPUs on each node. The trainer has the others.
ROLLOUT_NPUS=${ROLLOUT_NPUS:-$((NPUS_PER_NODE / 2))}
whole=$NPUS_PER_NODE
NPUS_PER_NODE=$((whole - ROLLOUT_NPUS))
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

one_step_off=(
    algorithm.adv_estimator=grpo
    actor_rollout_ref.hybrid_engine=False
    actor_rollout_ref.actor.strategy=fsdp2
    critic.strategy=fsdp2
    actor_rollout_ref.model.use_remove_padding=True
    actor_rollout_ref.model.enable_gradient_checkpointing=True
    actor_rollout_ref.actor.optim.lr=1e-6
    actor_rollout_ref.actor.use_kl_loss=False
    actor_rollout_ref.actor.use_dynamic_bsz=True
    actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True
    actor_rollout_ref.ref.fsdp_config.param_offload=True
    actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.mode=async
    actor_rollout_ref.rollout.gpu_memory_utilization=0.8
    rollout.nnodes="$NODES"
    rollout.n_gpus_per_node="$ROLLOUT_NPUS"
    trainer.test_freq=-1
)

# start_one_step_off SETTING…
start_one_step_off() {
    start recipe.one_step_off_policy.main_ppo "${job[@]}" "${eager[@]}" "${one_step_off[@]}" "$@"
}
