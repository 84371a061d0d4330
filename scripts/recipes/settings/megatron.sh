# The common settings of the Megatron rows. Sourced after the algorithm's settings, not run.

# Overlapping communication relies on the order in which kernels start.
export CUDA_DEVICE_MAX_CONNECTIONS=1

# The model as Megatron's distributed checkpoint, which verl's scripts/converter_hf_to_mcore.py writes.
CHECKPOINT=${CHECKPOINT:-$MODEL-mcore}

# over_megatron TP PP EP CP OPTIMIZER: set the parallel sizes, and whether the optimizer is offloaded like the rest.
over_megatron() {
    local role
    trainer=(
        actor_rollout_ref.actor.megatron.grad_offload=True
        actor_rollout_ref.actor.megatron.optimizer_offload="$5"
        +actor_rollout_ref.actor.megatron.override_transformer_config.use_flash_attn=True
    )
    for role in actor ref; do
        trainer+=(
            "actor_rollout_ref.$role.megatron.tensor_model_parallel_size=$1"
            "actor_rollout_ref.$role.megatron.pipeline_model_parallel_size=$2"
            "actor_rollout_ref.$role.megatron.expert_model_parallel_size=$3"
            "actor_rollout_ref.$role.megatron.context_parallel_size=$4"
            "actor_rollout_ref.$role.megatron.param_offload=True"
            "actor_rollout_ref.$role.megatron.use_dist_checkpointing=True"
            "actor_rollout_ref.$role.megatron.dist_checkpointing_path=$CHECKPOINT"
        )
    done
}

recompute_all=(
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method=uniform
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_num_layers=1
)
