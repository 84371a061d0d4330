#!/usr/bin/env bash
# row: SFT-PEFT | Qwen3-8B | FSDP | -
# pin: v0.6.1
# from: examples/sft/gsm8k/run_qwen3_8b_sft_peft_sp2_npu.sh
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen3-8B}
NODES=${NODES:-1}
NPUS_PER_NODE=${NPUS_PER_NODE:-8}
source "$(dirname "${BASH_SOURCE[0]}")/settings/sft.sh"

start_sft "${gsm8k[@]}" \
    data.prompt_key=extra_info \
    data.response_key=extra_info \
    data.prompt_dict_keys=[question] \
    +data.response_dict_keys=[answer] \
    data.micro_batch_size_per_gpu=64 \
    optim.lr=1e-4 \
    model.lora_rank=32 \
    model.lora_alpha=16 \
    model.target_modules=all-linear \
    ulysses_sequence_parallel_size=2 \
    trainer.total_epochs=2 \
    "$@"
