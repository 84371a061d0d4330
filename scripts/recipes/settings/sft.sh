# The common settings of supervised fine-tuning: one process for each NPU, started by torchrun. Sourced, not run.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

sft=(
    model.partial_pretrain="$MODEL"
    model.strategy=fsdp
    use_remove_padding=True
    trainer.default_local_dir="$OUTPUT"
    trainer.project_name=verl-npu
    trainer.experiment_name="$RECIPE"
    trainer.logger=[console]
)

# start_sft SETTING…: start the trainer. On several nodes, set MASTER_ADDR and NODE_RANK.
start_sft() {
    local place=(--standalone)
    if ((NODES > 1)); then
        place=(--node_rank="$NODE_RANK" --master_addr="$MASTER_ADDR" --master_port="${MASTER_PORT:-29500}")
    fi
    settle "${sft[@]}" "$@"
    exec torchrun --nnodes="$NODES" --nproc_per_node="$NPUS_PER_NODE" "${place[@]}" \
        -m verl.trainer.fsdp_sft_trainer "${settled[@]}"
}
