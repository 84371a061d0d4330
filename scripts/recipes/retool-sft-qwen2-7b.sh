#!/usr/bin/env bash
# row: ReTool-SFT | Qwen2-7B-Instruct | FSDP | -
# pin: v0.6.1
# from: recipe/retool/run_qwen2_7b_sft_npu.sh
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen2-7B-Instruct}
NODES=${NODES:-1}
NPUS_PER_NODE=${NPUS_PER_NODE:-8}
source "$(dirname "${BASH_SOURCE[0]}")/settings/sft.sh"

start_sft \
    data.train_files="$DATA/ReTool-SFT/data/train-00000-of-00001.parquet" \
    data.val_files="$DATA/ReTool-SFT/data/train-00000-of-00001.parquet" \
    data.max_length=16384 \
    data.train_batch_size=64 \
    data.micro_batch_size_per_gpu=8 \
    data.multiturn.enable=True \
    data.multiturn.messages_key=messages \
    data.multiturn.tools_key=tools \
    ulysses_sequence_parallel_size=4 \
    trainer.total_epochs=6 \
    trainer.save_freq=10 \
    "$@"
