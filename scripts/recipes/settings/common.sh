# The settings of every recipe: the places of data, model, and output, and the start of a trainer. Sourced, not run.
# No recipe sets trainer.device, because verl-npu does that.

RECIPE=$(basename "$0" .sh)
DATA=${DATA:-$HOME/data}
OUTPUT=${OUTPUT:-$PWD/outputs/$RECIPE}

gsm8k=(data.train_files="$DATA/gsm8k/train.parquet" data.val_files="$DATA/gsm8k/test.parquet")
geo3k=(data.train_files="$DATA/geo3k/train.parquet" data.val_files="$DATA/geo3k/test.parquet" data.image_key=images)
dapo_math=(data.train_files="$DATA/dapo-math-17k.parquet" data.val_files="$DATA/aime-2024.parquet")

# The settings of every trainer with Ray.
job=(
    trainer.nnodes="$NODES"
    trainer.n_gpus_per_node="$NPUS_PER_NODE"
    trainer.default_local_dir="$OUTPUT"
    trainer.project_name=verl-npu
    trainer.experiment_name="$RECIPE"
    trainer.logger=[console]
    trainer.critic_warmup=0
    actor_rollout_ref.model.path="$MODEL"
    actor_rollout_ref.actor.entropy_coeff=0
    algorithm.use_kl_in_reward=False
)

# Inductor has no backend for NPUs without triton-ascend.
eager=(actor_rollout_ref.actor.use_torch_compile=False actor_rollout_ref.ref.use_torch_compile=False)

# offload True|False [True|False]: offload parameters and optimizer of an FSDP actor. The reference model is always
# offloaded.
offload() {
    fsdp_offload=(
        actor_rollout_ref.actor.fsdp_config.param_offload="$1"
        actor_rollout_ref.actor.fsdp_config.optimizer_offload="${2:-$1}"
        actor_rollout_ref.ref.fsdp_config.param_offload=True
    )
}

# settle WORD…: put each setting once into `settled`, with its last value. So a row's own settings win over shared ones,
# and the command line wins over both.
settle() {
    local word key
    local -A place=()
    settled=()
    for word in "$@"; do
        key=${word%%=*}
        if [[ $word == *=* && -n ${place[$key]+set} ]]; then
            settled[${place[$key]}]=$word
        else
            place[$key]=${#settled[@]}
            settled+=("$word")
        fi
    done
}

# start MODULE SETTING…: start one process, which starts the workers with Ray.
start() {
    local module=$1
    shift
    settle "$@"
    exec python3 -m "$module" "${settled[@]}"
}
